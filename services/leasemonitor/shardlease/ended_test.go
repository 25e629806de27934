package shardlease_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
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
	require.Equal(t, contract.LeaseControllerIdentity, *m.lease().Spec.HolderIdentity)
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

// edit changes the Lease.
func (m *monitor) edit(change func(*coordinationv1.Lease)) {
	m.t.Helper()

	l := m.lease()
	change(l)
	require.NoError(m.t, m.admin.Update(m.t.Context(), l))
}

// TestTheSlotOfAPodThatHasEndedIsOffered has another Pod wait for a slot, which takes it or does not.
func TestTheSlotOfAPodThatHasEndedIsOffered(t *testing.T) {
	for name, tc := range map[string]struct {
		waits, takes bool
	}{
		"nobody waits":                      {},
		"a Pod waits, and does not take it": {waits: true},
		"a Pod waits, and takes it":         {waits: true, takes: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMonitor(t)
			m.Live = inPages{m.Live, t}
			m.Pods, m.shard.PodUID = ended{"uid-1": true}, "uid-1"
			require.NoError(t, m.shard.Acquire(t.Context()))
			m.edit(func(l *coordinationv1.Lease) { l.Annotations[contract.AnnotationPod] = "pod-1" })

			if tc.waits {
				require.NoError(t, m.admin.Create(t.Context(), &coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: m.id().Namespace, Name: "standby-pod-2", Labels: map[string]string{contract.LabelStandby: m.shard.Ring},
					},
					Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NewMicroTime(m.clock.Now()))},
				}))
			}

			m.look()

			if !tc.waits {
				require.Equal(t, contract.LeaseControllerIdentity, *m.lease().Spec.HolderIdentity)
				return
			}

			l := m.lease()
			require.Equal(t, m.shard.Name, *l.Spec.HolderIdentity)
			require.True(t, contract.IsOffered(l.Annotations, l.Spec.RenewTime.Time))

			if tc.takes {
				m.edit(func(l *coordinationv1.Lease) {
					l.Annotations = map[string]string{contract.AnnotationPod: "pod-2"}
					l.Spec.RenewTime = new(metav1.NewMicroTime(m.clock.Now().Add(time.Millisecond)))
				})
			}

			m.clock.Step(2*time.Second - time.Millisecond)
			m.look()
			require.Equal(t, m.shard.Name, *m.lease().Spec.HolderIdentity)
			m.clock.Step(time.Millisecond)
			m.look()
			require.Equal(t, tc.takes, m.shard.Name == *m.lease().Spec.HolderIdentity)
		})
	}
}

// inPages demands that lists are read in pages. Whoever may write Leases decides how large they are.
type inPages struct {
	client.Reader

	t *testing.T
}

func (r inPages) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	require.NotZero(r.t, (&client.ListOptions{}).ApplyOptions(opts).Limit)

	return r.Reader.List(ctx, list, opts...)
}

// unlisted fails lists.
type unlisted struct{ client.Reader }

func (unlisted) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("no list")
}

// An offer only saves moves. If nobody knows whether a Pod waits, the Lease is taken.
func TestTheSlotIsTakenIfNobodyKnowsWhoWaits(t *testing.T) {
	m := newMonitor(t)
	m.Live = unlisted{m.Live}
	m.Pods, m.shard.PodUID = ended{"uid-1": true}, "uid-1"
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.edit(func(l *coordinationv1.Lease) { l.Annotations[contract.AnnotationPod] = "pod-1" })
	m.look()
	require.Equal(t, contract.LeaseControllerIdentity, *m.lease().Spec.HolderIdentity)
}
