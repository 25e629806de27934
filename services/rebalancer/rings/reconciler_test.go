package rings

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// unwritable fails writes of the status while it is broken.
func unwritable(broken *atomic.Bool) interceptor.Funcs {
	return interceptor.Funcs{SubResourceApply: func(ctx context.Context, c client.Client, sub string,
		obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption,
	) error {
		if broken.Load() {
			return errors.New("the status cannot be written")
		}

		return c.SubResource(sub).Apply(ctx, obj, opts...)
	}}
}

// While status.assignment.fingerprint matches the current shards, the assigner assigns children to the shards of their owners'
// keys. The fingerprint must therefore be removed before the first owner is drained.
func TestStatusIsWrittenBeforeTheEngineGetsAnotherTarget(t *testing.T) {
	for what, change := range map[string]func(*fixture){
		"shards": func(w *fixture) { w.Join("b") },
		"selector": func(w *fixture) {
			w.Ring.Spec.NamespaceSelector.MatchLabels = map[string]string{"ring": "another"}
		},
		"resources": func(w *fixture) {
			w.Ring.Spec.Resources = []v1alpha1.RingResource{{Group: "networking.k8s.io", Resource: "ingressclasses"}}
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := ringtest.New(t, clusterRings)
			w.Join("a", "b")

			cm := w.Main(namesOf(w, "b", 1)[0], "a") // leaves a, whatever changes

			require.NoError(t, w.Shards["b"].Release(t.Context()))

			var (
				s      *stepped
				broken atomic.Bool
			)

			s = newStepped(w, unwritable(&broken))
			s.settle()

			e := s.fleet.engine(w.Ring.Name, w.Ring.LabelKeys())
			old := e.Target()
			versions := w.Versions(cm)

			broken.Store(true)
			require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))
			change(w)
			require.NoError(t, w.Client.Update(t.Context(), w.Ring))

			for range 3 {
				_, err := s.reconcileOnce()
				require.ErrorContains(t, err, "the status cannot be written")
				require.Same(t, old, e.Target(), "the engine has another target, but the status claims convergence")
			}

			require.Equal(t, versions, w.Versions(cm))
			require.NotEmpty(t, s.assignment().Fingerprint)

			broken.Store(false)

			_, err := s.reconcileOnce()
			require.NoError(t, err)
			require.NotSame(t, old, e.Target())
			require.Empty(t, s.assignment().Fingerprint)
			require.Equal(t, "configmaps", s.assignment().Resources[len(s.assignment().Resources)-1].Resource)
			w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, cm)
		})
	}
}

// An assigner may act on a change of the shards that the engine has never seen, because the status could not be written until the shards had
// changed back.
func TestChangeThatWasNotSetIsLookedInto(t *testing.T) {
	w := ringtest.New(t, clusterRings)
	w.Join("a", "b")
	require.NoError(t, w.Shards["b"].Release(t.Context()))

	var broken atomic.Bool

	s := newStepped(w, unwritable(&broken))
	s.settle()

	old := s.fleet.engine(w.Ring.Name, w.Ring.LabelKeys()).Target()

	broken.Store(true)
	w.Join("b")

	_, err := s.reconcileOnce()
	require.ErrorContains(t, err, "the status cannot be written")
	require.NoError(t, w.Shards["b"].Release(t.Context()))
	broken.Store(false)

	_, err = s.reconcileOnce()
	require.NoError(t, err)

	now := s.fleet.engine(w.Ring.Name, w.Ring.LabelKeys()).Target()
	require.Equal(t, old.View.AvailableShards(), now.View.AvailableShards())
	require.NotEqual(t, old.Revision, now.Revision, "objects should be looked for")
	require.Empty(t, s.assignment().Fingerprint)
}

// An outdated copy of the ring does not show what the status already contains.
func TestOldCopyOfTheRingRedirectsNothing(t *testing.T) {
	w := ringtest.New(t, clusterRings)
	w.Join("a", "b")

	var old atomic.Pointer[v1alpha1.ClusterRing]

	s := newStepped(w, interceptor.Funcs{Get: oldCopies(&old)})

	_, err := s.reconcileOnce()
	require.NoError(t, err)

	unsettled := &v1alpha1.ClusterRing{}
	require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), unsettled))
	require.Empty(t, unsettled.Status.Assignment.Fingerprint)
	s.settle()

	before := s.fleet.engine(w.Ring.Name, w.Ring.LabelKeys()).Target()

	require.NoError(t, w.Shards["b"].Release(t.Context()))
	old.Store(unsettled)

	result, err := s.reconcileOnce()
	require.NoError(t, err)
	require.Positive(t, result.RequeueAfter)
	require.Same(t, before, s.fleet.engine(w.Ring.Name, w.Ring.LabelKeys()).Target())
	require.NotEmpty(t, s.assignment().Fingerprint)

	old.Store(nil)

	_, err = s.reconcileOnce()
	require.NoError(t, err)
	require.NotSame(t, before, s.fleet.engine(w.Ring.Name, w.Ring.LabelKeys()).Target())
	require.Empty(t, s.assignment().Fingerprint)
}

// When a shard leaves, the lease monitor writes this into the status at the same moment. Objects do not wait for that.
func TestCopyThatOthersHaveWrittenSinceRedirects(t *testing.T) {
	w := ringtest.New(t, clusterRings)
	w.Join("a", "b")

	var old atomic.Pointer[v1alpha1.ClusterRing]

	s := newStepped(w, interceptor.Funcs{Get: oldCopies(&old)})
	s.settle()

	settled := &v1alpha1.ClusterRing{}
	require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), settled))

	before := s.fleet.engine(w.Ring.Name, w.Ring.LabelKeys()).Target()
	monitor := clusterring.StatusWriter{Client: w.Client, Owner: "leasemonitor", Clock: clock.RealClock{}}

	require.NoError(t, monitor.Write(t.Context(), settled, clusterring.StatusPart{Shards: new(int32(7))}))
	require.NoError(t, w.Shards["b"].Release(t.Context()))
	old.Store(settled)

	_, err := s.reconcileOnce()
	require.NoError(t, err)
	require.NotSame(t, before, s.fleet.engine(w.Ring.Name, w.Ring.LabelKeys()).Target())
	require.Empty(t, s.assignment().Fingerprint)
}

// When hundreds of shards join or die, each change of a Lease would otherwise cause a target of its own.
func TestTargetsTakeAThirdOfTheTime(t *testing.T) {
	w := ringtest.New(t, clusterRings)
	w.Join("a", "b", "c")

	const took = 100 * time.Millisecond

	now := testclock.NewFakePassiveClock(time.Unix(1_000_000_000, 0))
	slow := interceptor.Funcs{SubResourceApply: func(
		ctx context.Context, c client.Client, sub string, o runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption,
	) error {
		now.SetTime(now.Now().Add(took))
		return c.SubResource(sub).Apply(ctx, o, opts...)
	}}
	s := newStepped(w, slow)
	s.status.Clock = now
	s.settle()
	now.SetTime(now.Now().Add(longestPace))

	pursued := func() []string {
		return s.fleet.engine(w.Ring.Name, w.Ring.LabelKeys()).Target().View.AvailableShards()
	}

	require.NoError(t, w.Shards["a"].Release(t.Context()))

	_, err := s.reconcileOnce()
	require.NoError(t, err)
	require.Equal(t, []string{"b", "c"}, pursued(), "the first change counts at once")

	require.NoError(t, w.Shards["b"].Release(t.Context()))

	result, err := s.reconcileOnce()
	require.NoError(t, err)
	require.Equal(t, 2*took, result.RequeueAfter)
	require.Equal(t, []string{"b", "c"}, pursued())

	now.SetTime(now.Now().Add(result.RequeueAfter))

	_, err = s.reconcileOnce()
	require.NoError(t, err)
	require.Equal(t, []string{"c"}, pursued())
}

// Each write of a ring's status costs as much as moving about ten objects, and would trigger the next one.
func TestNumbersAreWrittenOnceInAWhile(t *testing.T) {
	w := ringtest.New(t, clusterRings)
	w.Join("a", "b")

	names := namesOf(w, "b", 2)
	first, second := w.Main(names[0], "a"), w.Main(names[1], "a")

	s := newStepped(w, interceptor.Funcs{})
	now := testclock.NewFakePassiveClock(time.Unix(1_000_000_000, 0))
	s.status.Clock = now

	_, err := s.reconcileOnce()
	require.NoError(t, err)
	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, first, second)

	draining := func(n int) func() bool {
		return func() bool { return s.fleet.engine(w.Ring.Name, w.Ring.LabelKeys()).Report().Draining == n }
	}
	require.Eventually(t, draining(2), 20*time.Second, time.Millisecond)

	now.SetTime(now.Now().Add(countsEvery))

	_, err = s.reconcileOnce()
	require.NoError(t, err)
	require.EqualValues(t, 2, s.assignment().Draining)

	w.Acknowledge(first)
	require.Eventually(t, draining(1), 20*time.Second, time.Millisecond)
	now.SetTime(now.Now().Add(countsEvery - time.Millisecond))

	result, err := s.reconcileOnce()
	require.NoError(t, err)
	require.EqualValues(t, 2, s.assignment().Draining, "it is too early to update the numbers")
	require.Equal(t, time.Millisecond, result.RequeueAfter)

	now.SetTime(now.Now().Add(result.RequeueAfter))
	require.True(t, s.counts.AllowN(now.Now(), countsPerSecond))

	result, err = s.reconcileOnce()
	require.NoError(t, err)
	require.EqualValues(t, 2, s.assignment().Draining, "other rings have used up the writes of numbers")
	require.Equal(t, countsEvery, result.RequeueAfter)

	now.SetTime(now.Now().Add(result.RequeueAfter))

	_, err = s.reconcileOnce()
	require.NoError(t, err)
	require.EqualValues(t, 1, s.assignment().Draining)

	w.Acknowledge(second)
	s.settle() // this change does not wait like numbers
	w.Assigned(v1alpha1.ReasonAllAssigned)
}

// The cache may not contain a recent write yet. The reconciler does not repeat the write because of that.
func TestOldCopyOfTheRingWritesNothingAgain(t *testing.T) {
	w := ringtest.New(t, clusterRings)
	w.Join("a", "b")
	w.Main(namesOf(w, "b", 1)[0], "b")

	var old atomic.Pointer[v1alpha1.ClusterRing]

	s := newStepped(w, interceptor.Funcs{Get: oldCopies(&old)})
	s.settle()

	settled := &v1alpha1.ClusterRing{}
	require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), settled))

	// The object stays where it is for now, for the process may live on.
	require.NoError(t, w.Shards["b"].Delete(t.Context()))
	s.Index.Delete(types.NamespacedName{Namespace: w.Namespace, Name: "b"})

	_, err := s.reconcileOnce()
	require.NoError(t, err)
	require.Empty(t, s.assignment().Fingerprint)
	old.Store(settled)

	result, err := s.reconcileOnce()
	require.NoError(t, err)
	require.Positive(t, result.RequeueAfter, "the cache will soon be up to date")
}

// A conflicting write of another client is not an error.
func TestConflictIsNoError(t *testing.T) {
	w := ringtest.New(t, clusterRings)
	w.Join("a")

	var old atomic.Pointer[v1alpha1.ClusterRing]

	s := newStepped(w, interceptor.Funcs{Get: oldCopies(&old)})

	old.Store(w.Ring.DeepCopy())

	w.Ring.Annotations = map[string]string{"written": "by another"}
	require.NoError(t, w.Client.Update(t.Context(), w.Ring))

	result, err := s.reconcileOnce()
	require.NoError(t, err)
	require.Positive(t, result.RequeueAfter)

	old.Store(nil)

	_, err = s.reconcileOnce()
	require.NoError(t, err)
	require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))
	require.Contains(t, w.Ring.Finalizers, contract.FinalizerRebalancer)
}

func TestNotesFitIntoEvents(t *testing.T) {
	require.Equal(t, "short", clip("short", maxNote))

	long := clip(strings.Repeat("ü", 1024), maxNote)
	require.LessOrEqual(t, len(long), 1024)
	require.True(t, utf8.ValidString(long))
}
