//go:build linux

package shard

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// An object whose reconcile has ended the process twice is held back, by whichever shard it belongs to, until it
// changes or a person wants it back.
func TestPoisonIsHeldBack(t *testing.T) {
	f := newFixture(t)
	s, other := f.shard("shard-0"), f.shard("shard-1")
	notes := notesOf(f.config.Host, f.namespace, f.ring, "shard-0")

	t.Cleanup(func() { _ = os.RemoveAll(notes) })

	poison := f.configMap(s, "poison")
	// ends is a process that the reconcile of the poison ends, without the good order of a manager that stops.
	ends := func() {
		s := f.shard("shard-0")
		s.term.unlimited()
		require.NoError(t, s.poison.open(notes))

		r := s.Reconciler(f.admin, &corev1.ConfigMap{},
			reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) { panic("poison") }))
		require.Panics(t, func() { _, _ = r.Reconcile(marked(t.Context(), mark{controller: "test"}), request(poison)) })
	}
	// begin starts a process whose controller does not see changes.
	begin := func(s *Shard) (*process, names) {
		worked := newNames()
		p := f.start(s, func(mgr ctrl.Manager) {
			require.NoError(t, ctrl.NewControllerManagedBy(mgr).Named("test").
				For(&corev1.ConfigMap{}, forOptions(&corev1.ConfigMap{})).Complete(reconcile.Func(worked.reconcile)))
		})

		return p, worked
	}

	ends()
	ends()

	p, worked := begin(s)

	f.configMap(s, "a")
	require.Equal(t, "a", receive(f, worked, "the process works"))
	f.heldBack(s, poison)
	f.eventually("an event says so", func() bool {
		var list eventsv1.EventList
		require.NoError(f, f.admin.List(f.Context(), &list, client.InNamespace(f.namespace)))

		return slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Reason == "HeldBack" && e.Regarding.Name == "poison" && e.Regarding.Kind == "ConfigMap" &&
				e.Regarding.UID == poison.UID
		})
	})

	// Another shard gets it, and works on its other objects.
	_, others := begin(other)

	f.label(poison, s.shardKey, "shard-1")
	f.configMap(other, "c")
	require.Equal(t, "c", receive(f, others, "the process works"))
	f.eventually("it is held back there", func() bool { return len(other.heldBack()) > 0 })

	// A person wants it back.
	f.label(poison, s.shardKey, "shard-0")
	f.configMap(s, "d")
	require.Equal(t, "d", receive(f, worked, "the process works"))
	f.eventually("it is held back again", func() bool { return len(s.heldBack()) > 0 })
	f.merge(poison, map[string]any{"annotations": nil})
	require.Equal(t, "poison", receive(f, worked, "it is reconciled"))

	// It changes.
	require.NoError(t, p.stop())
	ends()
	ends()

	s = f.shard("shard-0")
	_, worked = begin(s)

	f.heldBack(s, poison)
	f.eventually("its shard knows", func() bool { return len(s.heldBack()) > 0 })
	require.NoError(t, f.admin.Patch(t.Context(), poison,
		client.RawPatch(types.MergePatchType, []byte(`{"data":{"a":"b"}}`))))
	f.eventually("it is reconciled", func() bool { return receive(f, worked, "an object is") == "poison" })
	require.Empty(t, others)
}

func (f *fixture) heldBack(s *Shard, obj client.Object) {
	f.Helper()
	f.eventually("the object is held back", func() bool {
		f.refresh(obj)

		return obj.GetAnnotations()[s.LabelKeys().Held] == s.poison.fingerprint(obj)
	})
}

// After two ends, it is certain which of several objects was worked on both times.
func TestSuspectsAreTriedOneByOne(t *testing.T) {
	key := func(name string) job {
		return job{objectKey: objectKey{corev1.SchemeGroupVersion.WithKind("ConfigMap").GroupKind(),
			types.NamespacedName{Namespace: "n", Name: name}}}
	}
	start := func() *poison {
		p := newPoison(ringKeys{Held: "held"})
		require.NoError(t, p.open(notesOf(t.Name())))

		return p
	}
	may := func(p *poison, name string) bool {
		may, _ := p.enter(t.Context(), judged{job: key(name)})

		return may
	}

	p := start()
	require.True(t, may(p, "a"))
	require.True(t, may(p, "b"))
	require.True(t, may(p, "done"))
	p.leave(key("done"), true)

	p = start()
	require.Len(t, p.suspects, 2)
	require.True(t, may(p, "c"))
	require.True(t, may(p, "a"))
	require.False(t, may(p, "b"), "while the other is tried")
	p.leave(key("a"), true)
	require.True(t, may(p, "b"))
	require.True(t, may(p, "b"), "by another controller")
	p.leave(key("b"), true)

	p = start()
	require.Nil(t, p.suspects[key("a")], "it has returned")
	require.True(t, p.suspects[key("b")].proven)
	require.False(t, p.suspects[key("c")].proven)
	require.False(t, may(p, "b"))

	p.clock = testingclock.NewFakePassiveClock(p.clock.Now().Add(2 * suspected))
	require.True(t, may(p, "b"), "it was long ago")
	require.True(t, may(p, "a"))
	p.close()

	p = start()
	require.Empty(t, p.suspects, "the process has ended in good order")
	p.close()
}
