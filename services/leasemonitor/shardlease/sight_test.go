package shardlease_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/leasemonitor/shardlease"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
)

// A monitor that was frozen, or could not reach the API server, cannot know whether a Lease was not renewed because its
// shard is dead.
func TestTimeWithoutSightDoesNotCount(t *testing.T) {
	m := newMonitor(t)
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.look()
	m.lookAt(d / 2)

	m.clock.Step(3 * d) // without a look at the API server
	m.look()
	require.Equal(t, m.shard.Name, *m.lease().Spec.HolderIdentity)
	require.Equal(t, "ready", m.state())

	back := m.clock.Now().Sub(start) + time.Second // that is the next look
	m.lookAt(back)
	m.lookAt(back + 2*d)
	require.Equal(t, m.shard.Name, *m.lease().Spec.HolderIdentity, "the age begins at 0")
	m.lookAt(back + 2*d + time.Second)
	require.Equal(t, contract.LeaseControllerIdentity, *m.lease().Spec.HolderIdentity, "and then it counts")
}

// fleet makes shards, which renew at different moments of the last second, and are then silent.
func (m *monitor) fleet(n int) []*leasetest.Shard {
	m.t.Helper()

	shards := make([]*leasetest.Shard, n)

	for i := range shards {
		shard := *m.shard
		shard.Name = fmt.Sprintf("shard-%d", i)
		shards[i] = &shard
		require.NoError(m.t, shard.Acquire(m.t.Context()))
		m.lookAtAll(shards[:i+1])
		m.pass(m.clock.Now().Sub(start) + time.Second/time.Duration(n))
	}

	return shards
}

func (m *monitor) lookAtAll(shards []*leasetest.Shard) {
	m.t.Helper()

	for _, s := range shards {
		_, err := m.Reconcile(m.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: s.Namespace,
			Name: s.Name}})
		require.NoError(m.t, err)
	}
}

// holders returns who holds the shards' Leases.
func (m *monitor) holders(shards []*leasetest.Shard) (holders []string) {
	m.t.Helper()

	for _, s := range shards {
		l, err := s.Lease(m.t.Context())
		require.NoError(m.t, err)

		holders = append(holders, ptr.Deref(l.Spec.HolderIdentity, ""))
	}

	return holders
}

func TestMostShardsSilentAtOnceGetAnotherLook(t *testing.T) {
	m := newMonitor(t)
	shards := m.fleet(3)
	begin := m.clock.Now().Sub(start)

	m.pass(begin + 2*d + time.Second)
	m.lookAtAll(shards)
	m.lookAtAll(shards)
	require.Equal(t, []string{"shard-0", "shard-1", "shard-2"}, m.holders(shards))
	require.Equal(t, "Warning ManyShardsSilent 3 of 3 shards have stopped renewing their Leases at the same time, "+
		"which may have another cause: "+
		"taking the Leases of shards that stay silent for another lease duration", <-m.events.Events)
	require.Empty(t, m.events.Events, "once is enough")

	// Two come back. The third is slower, and still gets the whole time.
	for _, s := range shards[:2] {
		s.Clock = clock.RealClock{}
		require.NoError(t, s.Renew(t.Context()))
	}

	m.pass(begin + 3*d - time.Second)
	m.lookAtAll(shards)
	require.Equal(t, []string{"shard-0", "shard-1", "shard-2"}, m.holders(shards))

	m.pass(begin + 3*d + time.Second)
	m.lookAtAll(shards)
	require.Equal(t, []string{"shard-0", "shard-1", contract.LeaseControllerIdentity}, m.holders(shards))
	require.Contains(t, <-m.events.Events, "ShardFailed")
}

// answers is an API server that answers as it is told.
type answers struct {
	client.Client

	get, write    error
	takes         time.Duration
	reads, writes atomic.Int32
	// others reports that another replica writes.
	others bool
}

func (a *answers) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	time.Sleep(a.takes) //nolint:forbidigo // in a bubble, where time is not real
	obj.SetResourceVersion(strconv.Itoa(int(a.writes.Load())))

	if read := a.reads.Add(1); a.others {
		obj.SetResourceVersion(strconv.Itoa(int(read)))
	}

	return a.get
}

func (a *answers) Create(_ context.Context, obj client.Object, _ ...client.CreateOption) error {
	return a.written(obj)
}

func (a *answers) Update(_ context.Context, obj client.Object, _ ...client.UpdateOption) error {
	return a.written(obj)
}

func (a *answers) written(obj client.Object) error {
	n := a.writes.Add(1)
	obj.SetResourceVersion(strconv.Itoa(int(n)))

	if n == 1 && apierrors.IsConflict(a.write) {
		return nil // nobody else has begun
	}

	return a.write
}

func TestHeartbeat(t *testing.T) {
	resource := schema.GroupResource{Resource: "leases"}
	notFound, conflict := apierrors.NewNotFound(resource, "heartbeat"), apierrors.NewConflict(resource, "heartbeat",
		errors.New("changed"))

	for name, tc := range map[string]struct {
		answers *answers
		sees    bool
	}{
		"there is a Lease":      {&answers{}, true},
		"there is none":         {&answers{get: notFound}, true},
		"another one is faster": {&answers{write: conflict}, true},
		"another one makes it":  {&answers{get: notFound, write: apierrors.NewAlreadyExists(resource, "heartbeat")}, true},
		"others write":          {&answers{others: true}, true},
		"the answer is slow":    {&answers{takes: time.Second}, true},
		"the API server fails":  {&answers{get: apierrors.NewInternalError(errors.New("etcd"))}, false},
		"nobody answers":        {&answers{get: context.DeadlineExceeded, takes: 2 * time.Second}, false},
		"it cannot be written": {&answers{write: apierrors.NewInternalError(errors.New("etcdserver: mvcc: database " +
			"space exceeded"))}, false},
		"it cannot be made": {&answers{get: notFound,
			write: apierrors.NewInternalError(errors.New("no endpoints available"))}, false},
		"it may not be written": {&answers{write: apierrors.NewForbidden(resource, "heartbeat", errors.New("read-only"))},
			false},
		"it is gone at the write": {&answers{write: notFound}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sight, server := &lease.Sight{}, tc.answers
				ctx, cancel := context.WithCancel(t.Context())
				h := &shardlease.Heartbeat{Client: server, Clock: clock.RealClock{}, Sight: sight}
				require.False(t, h.NeedLeaderElection())

				done := make(chan error, 1)
				go func() { done <- h.Start(ctx) }()

				begin := clock.RealClock{}.Now()
				time.Sleep(time.Minute) //nolint:forbidigo // in a bubble, where time is not real
				synctest.Wait()

				since, sees := sight.Since(lease.DefaultDuration, clock.RealClock{}.Now())
				require.Equal(t, tc.sees, sees)

				if sees {
					require.WithinDuration(t, begin, since, 2*time.Second, "without a gap")
				}
				require.LessOrEqual(t, server.reads.Load(), int32(31), "a look every other second")
				require.LessOrEqual(t, server.writes.Load(), server.reads.Load())

				if apierrors.IsConflict(server.write) {
					require.Equal(t, server.reads.Load(), server.writes.Load(), "another one's write counts for one look")
				}

				if server.others {
					require.Equal(t, int32(1), server.writes.Load(), "one of them is enough")
				}

				before := server.reads.Load()
				sight.Since(time.Second, clock.RealClock{}.Now())
				time.Sleep(time.Minute) //nolint:forbidigo // in a bubble, where time is not real
				synctest.Wait()
				require.LessOrEqual(t, server.reads.Load()-before, int32(61))

				if server.takes == 0 {
					require.GreaterOrEqual(t, server.reads.Load()-before, int32(59), "every second for a short Lease")
				}

				cancel()
				require.NoError(t, <-done)
			})
		})
	}
}
