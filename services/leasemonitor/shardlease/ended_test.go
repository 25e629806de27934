package shardlease_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// ended are the uids of Pods that have ended.
type ended map[types.UID]bool

func (e ended) Ended(uid types.UID) bool { return e[uid] }

func (e ended) Leases() <-chan event.TypedGenericEvent[*coordinationv1.Lease] { return nil }

// The Lease of a Pod that has ended is taken at once, by the contract, and people are told why.
func TestTheLeaseOfAPodThatHasEndedIsTaken(t *testing.T) {
	m := newMonitor(t)
	reported := ended{}
	m.Pods, m.shard.PodUID = reported, "uid-1"
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.look()
	require.Equal(t, "ready", m.state())

	reported["uid-1"] = true

	m.look()
	require.Equal(t, v1alpha1.LeaseControllerIdentity, *m.lease().Spec.HolderIdentity)
	require.EqualValues(t, 20, *m.lease().Spec.LeaseDurationSeconds)
	m.look()
	require.Equal(t, "dead", m.state())
	require.Contains(t, <-m.events.Events, "ShardEnded The kubelet has reported that the Pod of shard "+m.id().String()+" has ended, 0s after its last renewal")
	require.Error(t, m.shard.Renew(t.Context()), "a process that runs in spite of that sees that it has lost the Lease")
}

// The word about a Pod counts only for what that Pod has written.
func TestTheWordAboutAPredecessorDoesNotCount(t *testing.T) {
	for name, successor := range map[string]types.UID{
		"another Pod of the same name":                      "uid-2",
		"a process that does not know the uid of its Pod":   "",
		"a Pod whose uid is the end of that of another Pod": "1",
	} {
		t.Run(name, func(t *testing.T) {
			m := newMonitor(t)
			m.Pods, m.shard.PodUID = ended{"uid-1": true}, "uid-1"
			require.NoError(t, m.shard.Acquire(t.Context()))

			m.shard.PodUID, m.shard.Clock = successor, testclock.NewFakeClock(start.Add(time.Microsecond))
			require.NoError(t, m.shard.Renew(t.Context()))
			m.look()
			require.Equal(t, "ready", m.state())
			require.Equal(t, m.shard.Name, *m.lease().Spec.HolderIdentity)
		})
	}
}
