package shard

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/pkg/shard/internal/hook"
)

func TestMembersAreOnePerNameOrPerClient(t *testing.T) {
	f := newFixture(t)
	m := newMembers()
	wrapped := func(name string, c client.Client) *Shard {
		w, err := m.wrap(hook.Wrapped{
			Identity: hook.Identity{Ring: f.ring, Name: name}, Client: c, Object: &corev1.ConfigMap{}, Do: reconcile.Func(nothing),
		})
		require.NoError(t, err)

		return w.(*reconciler).shard //nolint:forcetypeassert // of this package
	}
	other := &struct{ client.Client }{f.admin}

	alone := wrapped("a", f.admin)
	require.Same(t, alone, wrapped("a", f.admin))
	require.NotSame(t, alone, wrapped("b", f.admin))
	require.NotSame(t, alone, wrapped("a", other), "another test")
	first, second := wrapped("a", incomparable{Client: f.admin}), wrapped("a", incomparable{Client: f.admin})
	require.NotSame(t, first, second)
	require.NoError(t, alone.term.held())

	joined, err := m.join(hook.Identity{Ring: f.ring, Name: "a", Namespace: f.namespace}, f.config)
	require.NoError(t, err)

	member := joined.(elected).shard //nolint:forcetypeassert // of this package
	require.Same(t, member, wrapped("a", f.admin))
	require.Same(t, member, wrapped("a", other))
	require.ErrorIs(t, member.term.held(), ErrNotHeld)
	require.NotNil(t, member.liveReader())

	again, err := m.join(hook.Identity{Ring: f.ring, Name: "a", Namespace: f.namespace}, f.config)
	require.NoError(t, err)
	require.NotSame(t, member, again.(elected).shard)             //nolint:forcetypeassert // of this package
	require.Same(t, again.(elected).shard, wrapped("a", f.admin)) //nolint:forcetypeassert // of this package
}

// A Lease of which nothing else is known is kept, and reconcilers do not depend on it: they could read nothing live.
func TestMemberWithoutConfigHasNoReconcilers(t *testing.T) {
	f := newFixture(t)
	m := newMembers()

	joined, err := m.join(hook.Identity{Ring: f.ring, Name: "a", Namespace: f.namespace}, nil)
	require.NoError(t, err)

	leases, err := coordinationv1client.NewForConfig(f.config)
	require.NoError(t, err)

	lock := joined.Elect(hook.Lock{Leases: leases, Labels: map[string]string{v1alpha1.LabelClusterRing: f.ring}})
	require.NoError(t, lock.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 60}))

	cm := f.configMap(joined.(elected).shard, "owned") //nolint:forcetypeassert // of this package
	worked := 0

	w, err := m.wrap(hook.Wrapped{
		Identity: hook.Identity{Ring: f.ring, Name: "a"}, Client: f.admin, Object: cm,
		Do: reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			worked++
			return reconcile.Result{}, nil
		}),
	})
	require.NoError(t, err)

	_, err = w.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(cm)})
	require.NoError(t, err)
	require.Equal(t, 1, worked)
}

// incomparable is a client that cannot be the key of a map.
type incomparable struct {
	client.Client

	_ []string
}

// The term of a member has the length of its Lease, however long that is.
func TestTermOfAMemberFollowsItsLease(t *testing.T) {
	f := newFixture(t)
	s, err := memberOf(hook.Identity{Ring: f.ring, Name: "shard-0", Namespace: f.namespace})
	require.NoError(t, err)

	leases, err := coordinationv1client.NewForConfig(f.config)
	require.NoError(t, err)

	t.Cleanup(func() { s.term.close() })

	lock := elected{s}.Elect(hook.Lock{Leases: leases, Labels: map[string]string{"alpha.sharding.timebertt.dev/clusterring": f.ring}})
	record := resourcelock.LeaderElectionRecord{HolderIdentity: "shard-0", LeaseDurationSeconds: 60}
	require.NoError(t, lock.Create(t.Context(), record))
	require.Equal(t, time.Minute, s.term.renewDeadline)

	record.LeaseDurationSeconds = 30
	require.NoError(t, lock.Update(t.Context(), record))
	require.Equal(t, 30*time.Second, s.term.renewDeadline)
}

func TestLastingTerm(t *testing.T) {
	testTerm(t, func(t *testing.T, term *term, exits *exits) {
		t.Helper()
		term.lasting(time.Minute)
		term.acquired(term.clock.Now(), 0)
		pass(59 * time.Second)

		working, end := work(t, term)
		defer end()

		require.NoError(t, working.Err())
		pass(time.Second)
		require.ErrorIs(t, term.held(), ErrLost)
		require.ErrorIs(t, working.Err(), context.Canceled)
		pass(20*time.Second - instant)
		require.Zero(t, exits.count.Load())
		pass(instant)
		require.EqualValues(t, 1, exits.count.Load(), "the worker has not stopped")
	})
}
