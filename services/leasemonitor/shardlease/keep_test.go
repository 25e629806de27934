package shardlease_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// lost makes a ring for the shard whose status names these shards as lost.
func (m *monitor) lost(names ...string) {
	m.t.Helper()

	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: m.shard.Ring}}
	require.NoError(m.t, m.admin.Get(m.t.Context(), client.ObjectKeyFromObject(ring), ring))
	ring.Status.Assignment = &v1alpha1.AssignmentStatus{LostShards: names}
	require.NoError(m.t, m.admin.Status().Update(m.t.Context(), ring))
}

func TestTakenLeaseIsKeptWhileObjectsAreMoved(t *testing.T) {
	m := newMonitor(t)
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.look()
	m.lookAt(2*d + time.Second)
	m.look()
	taken := m.lease()

	// Nothing is to be moved: nothing is written.
	m.lookAt(3 * d)
	require.Equal(t, taken, m.lease())

	m.lost("another", m.shard.Name)
	m.look()
	kept := m.lease()
	require.Equal(t, start.Add(3*d), kept.Spec.RenewTime.UTC())
	kept.Spec.RenewTime, kept.ResourceVersion, kept.ManagedFields = taken.Spec.RenewTime, taken.ResourceVersion, taken.ManagedFields
	require.Equal(t, taken, kept, "nothing else changes")

	require.Equal(t, d/2, m.look().RequeueAfter, "and so on, twice per D")
	m.lookAt(3*d + d/2)
	m.look()
	require.Equal(t, start.Add(3*d+d/2), m.lease().Spec.RenewTime.UTC())
	require.Equal(t, contract.LeaseControllerIdentity, *m.lease().Spec.HolderIdentity)

	// A rebalancer that is dead keeps no shard out for ever, and no Lease from being deleted.
	at := 4 * d
	for ; at < 30*d; at += d / 2 {
		m.lookAt(at)
		m.look()

		if at < 21*d {
			require.Equal(t, start.Add(at), m.lease().Spec.RenewTime.UTC())
		}
	}
	require.LessOrEqual(t, m.lease().Spec.RenewTime.Sub(start), 23*d)
	m.lookAt(at + time.Minute + 2*d)
	m.look()
	require.Nil(t, m.lease())
}

func TestReleasedLeaseIsTakenWhileObjectsAreMoved(t *testing.T) {
	m := newMonitor(t)
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.look()
	require.NoError(t, m.shard.Release(t.Context()))
	m.look()
	m.lookAt(d)
	require.Empty(t, *m.lease().Spec.HolderIdentity, "nothing is to be moved")

	m.lost(m.shard.Name)
	m.look()
	require.Equal(t, contract.LeaseControllerIdentity, *m.lease().Spec.HolderIdentity)
	require.EqualValues(t, 2*d/time.Second, *m.lease().Spec.LeaseDurationSeconds, "as if it had failed")
	require.Contains(t, <-m.events.Events, "Normal LeaseKept")
	m.look()
	require.Equal(t, "dead", m.state())

	// It comes back, and releases again: so quickly that it keeps its Lease.
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.look()
	require.NoError(t, m.shard.Release(t.Context()))
	require.Equal(t, 3*time.Second, m.look().RequeueAfter)
	m.lookAt(d + 2*time.Second)
	require.Empty(t, *m.lease().Spec.HolderIdentity)
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.lookAt(d + 4*time.Second)
	require.Equal(t, m.shard.Name, *m.lease().Spec.HolderIdentity)
}

// The API server refuses a negative number of transitions.
func TestLeaseWithTheLargestNumberOfTransitionsIsTaken(t *testing.T) {
	m := newMonitor(t)
	require.NoError(t, m.shard.Acquire(t.Context()))
	l := m.lease()
	l.Spec.LeaseTransitions = new(int32(math.MaxInt32))
	require.NoError(t, m.admin.Update(t.Context(), l))

	m.look()
	m.lookAt(2*d + time.Second)
	require.Equal(t, contract.LeaseControllerIdentity, *m.lease().Spec.HolderIdentity)
	require.NoError(t, m.shard.Acquire(t.Context()), "and its shard can count on")
}

// A finalizer may keep a Lease that somebody has deleted, for as long as it likes.
func TestLeaseInDeletionIsJudgedAsAnyOther(t *testing.T) {
	m := newMonitor(t)
	require.NoError(t, m.shard.Acquire(t.Context()))
	l := m.lease()
	l.Finalizers = []string{"example.org/keeps"}
	require.NoError(t, m.admin.Update(t.Context(), l))
	require.NoError(t, m.shard.Delete(t.Context()))

	m.look()
	require.Equal(t, "ready", m.state(), "its holder may renew it")

	m.lookAt(2*d + time.Second)
	require.Equal(t, contract.LeaseControllerIdentity, *m.lease().Spec.HolderIdentity)
	m.look()
	require.Equal(t, "dead", m.state())

	m.Client = &meddled{Client: m.Client, before: func() { t.Error("it was deleted already") }}
	require.Zero(t, m.lookAt(time.Hour).RequeueAfter, "its end is all that is to come")
	require.Equal(t, "orphaned", m.state())

	l = m.lease()
	l.Finalizers = nil
	require.NoError(t, m.admin.Update(t.Context(), l))
	require.Nil(t, m.lease())
}
