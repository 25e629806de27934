package shardlease_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/leasemonitor/shardlease"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// start is when every test begins, by the monitor's clock.
var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// d is the lease duration of the shards in these tests.
const d = 10 * time.Second

// monitor is a reconciler with the rights of the service, a clock that stands still, and one shard to look at.
type monitor struct {
	*shardlease.Reconciler

	t      *testing.T
	clock  *testclock.FakeClock
	events *events.FakeRecorder
	shard  *leasetest.Shard
	admin  client.Client
}

func newMonitor(t *testing.T) *monitor {
	t.Helper()

	plane := localplane.Shared(t)
	config, err := clientcmd.BuildConfigFromFlags("", plane.ServiceKubeconfig(t, "leasemonitor"))
	require.NoError(t, err)

	config.QPS = -1
	own, err := client.New(config, client.Options{Scheme: plane.Client.Scheme()})
	require.NoError(t, err)

	namespace := plane.Namespace(t) // and the name of a ring of its own: shards that die together are judged together
	clock, recorder := testclock.NewFakeClock(start), events.NewFakeRecorder(100)
	ages := &lease.Observer{Sight: &lease.Sight{}}
	ages.Sight.Saw(start, start)

	m := &monitor{
		Reconciler: &shardlease.Reconciler{
			Client: own, Live: own, Clock: clock, Ages: ages, Events: recorder, NotTaken: &shardlease.NotTaken{},
		},
		t:      t,
		clock:  clock,
		events: recorder,
		admin:  plane.Client,
		shard: &leasetest.Shard{
			Client: plane.Client, Ring: namespace, Namespace: namespace, Name: "shard-0", Duration: d,
			Clock: testclock.NewFakeClock(start.AddDate(-3, 0, 0)), // its clock has no say
		},
	}
	m.exists(namespace)

	return m
}

func (m *monitor) id() types.NamespacedName {
	return types.NamespacedName{Namespace: m.shard.Namespace, Name: m.shard.Name}
}

// look reconciles the shard's Lease once.
func (m *monitor) look() reconcile.Result {
	m.t.Helper()

	result, err := m.Reconcile(m.t.Context(), reconcile.Request{NamespacedName: m.id()})
	require.NoError(m.t, err)

	return result
}

// pass lets time pass until the given time since the start, with a look at the API server every second.
func (m *monitor) pass(since time.Duration) {
	for until := start.Add(since); m.clock.Now().Before(until); {
		m.clock.SetTime(m.clock.Now().Add(min(time.Second, until.Sub(m.clock.Now()))))
		m.Ages.Sight.Saw(m.clock.Now(), m.clock.Now())
	}
}

// lookAt lets time pass until the given time since the start, and reconciles.
func (m *monitor) lookAt(since time.Duration) reconcile.Result {
	m.t.Helper()
	m.pass(since)

	return m.look()
}

// lease returns the shard's Lease as it is, nil if there is none.
func (m *monitor) lease() *coordinationv1.Lease {
	m.t.Helper()

	l, err := m.shard.Lease(m.t.Context())
	if apierrors.IsNotFound(err) {
		return nil
	}

	require.NoError(m.t, err)

	return l
}

func (m *monitor) state() string {
	m.t.Helper()
	return m.lease().Labels[contract.LabelState]
}

func TestTakeOverWritesExactlyWhatTheContractSays(t *testing.T) {
	m := newMonitor(t)
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.look()

	before := m.lease()
	m.lookAt(2*d + time.Second)
	after := m.lease()

	require.Equal(t, coordinationv1.LeaseSpec{
		HolderIdentity:       new("shardlease-controller"),
		LeaseDurationSeconds: new(int32(20)),
		AcquireTime:          new(metav1.NewMicroTime(start.Add(2*d + time.Second).Local())),
		RenewTime:            new(metav1.NewMicroTime(start.Add(2*d + time.Second).Local())),
		LeaseTransitions:     new(int32(1)),
	}, after.Spec)
	require.Equal(t, before.UID, after.UID)
	require.Equal(t, m.shard.Ring, after.Labels[contract.LabelClusterRing])
}

func TestShardWithWrongClockStaysReady(t *testing.T) {
	m := newMonitor(t)
	clock := testclock.NewFakeClock(start.AddDate(5, 0, 0))
	m.shard.Clock = clock
	require.NoError(t, m.shard.Acquire(t.Context()))

	for now := time.Duration(0); now < 5*d; now += d / 2 {
		m.lookAt(now)
		require.Equal(t, "ready", m.state())
		clock.Step(time.Millisecond) // its clock is slow, too, but it renews
		require.NoError(t, m.shard.Renew(t.Context()))
	}
}

func TestReleasedShardIsDeadAtOnce(t *testing.T) {
	m := newMonitor(t)
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.look()
	require.Equal(t, "ready", m.state())

	require.NoError(t, m.shard.Release(t.Context()))
	m.look()
	require.Equal(t, "dead", m.state())
}

func TestLabelIsCorrectedWhenSomebodyEditsIt(t *testing.T) {
	m := newMonitor(t)
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.look()

	for _, edit := range []string{`"dead"`, `null`} {
		patch := []byte(`{"metadata":{"labels":{"` + contract.LabelState + `":` + edit + `}}}`)
		require.NoError(t, m.admin.Patch(t.Context(), m.lease(), client.RawPatch(types.MergePatchType, patch)))
		m.lookAt(d + time.Second)
		require.Equal(t, "expired", m.state(), "a label is no sign of life")
	}
}

func TestNothingIsWrittenWhenNothingChanges(t *testing.T) {
	m := newMonitor(t)
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.look()

	c := &meddled{Client: m.Client}
	m.Client = c
	m.lookAt(d / 2)
	require.Zero(t, c.patches)
}

func TestLeaseOfNoRingIsLeftAlone(t *testing.T) {
	m := newMonitor(t)
	m.shard.Ring = ""
	require.NoError(t, m.shard.Acquire(t.Context()))

	before := m.lease()
	m.look()
	m.lookAt(10 * d)
	m.lookAt(time.Hour)
	require.Equal(t, before, m.lease())
}

// A Lease in a namespace that does not count is not a shard's, and is left alone until its namespace counts.
func TestLeaseInANamespaceThatDoesNotCountIsLeftAlone(t *testing.T) {
	m := newMonitor(t)
	m.shard.Ring = "ring-of-" + m.shard.Namespace
	ring := &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: m.shard.Ring},
		Spec: v1alpha1.ClusterRingSpec{
			Resources: []v1alpha1.RingResource{{Resource: "configmaps"}}, ShardNamespaces: []string{"elsewhere"},
		},
	}
	require.NoError(t, m.admin.Create(t.Context(), ring))
	require.NoError(t, m.shard.Acquire(t.Context()))

	before := m.lease()
	m.look()
	m.lookAt(10 * d)
	m.lookAt(time.Hour)
	require.Equal(t, before, m.lease())

	ring.Spec.ShardNamespaces = append(ring.Spec.ShardNamespaces, m.shard.Namespace)
	require.NoError(t, m.admin.Update(t.Context(), ring))
	m.look()
	require.Equal(t, "uncertain", m.state())
}

func TestMissingLeaseIsNoError(t *testing.T) {
	require.Zero(t, newMonitor(t).look())
}

// afterRead is a reader that lets something happen right after it has read.
type afterRead struct {
	client.Reader

	do func()
}

func (r afterRead) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	err := r.Reader.Get(ctx, key, obj, opts...)
	r.do()

	return err
}

func TestShardThatRenewsFirstKeepsItsLease(t *testing.T) {
	m := newMonitor(t)
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.look()

	m.lookAt(2 * d)
	m.Live = afterRead{m.Client, func() { require.NoError(t, m.shard.Renew(t.Context())) }}
	m.shard.Clock = testclock.NewFakeClock(start)
	m.lookAt(2*d + time.Second)
	require.Equal(t, m.shard.Name, *m.lease().Spec.HolderIdentity)

	m.look()
	require.Equal(t, "ready", m.state())
	require.Empty(t, m.events.Events)
}

// late is a client whose cache has stopped to follow.
type late struct {
	client.Client

	cached *coordinationv1.Lease
}

func (c late) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if l, ok := obj.(*coordinationv1.Lease); ok {
		c.cached.DeepCopyInto(l)
		return nil
	}

	return c.Client.Get(ctx, key, obj, opts...)
}

func TestLabelThatComesTooLateIsNoError(t *testing.T) {
	m := newMonitor(t)
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.Client = &meddled{Client: m.Client, beforePatch: func() { require.NoError(t, m.shard.Delete(t.Context())) }}
	m.look()
}

func TestNextLeaseOfTheSameNameIsNotTaken(t *testing.T) {
	m := newMonitor(t)
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.lookAt(0)
	m.Client = &meddled{Client: m.Client, before: func() {}, beforePatch: func() {
		require.NoError(t, m.shard.Delete(t.Context()))
		require.NoError(t, m.shard.Acquire(t.Context())) // by a clock that stands still: the very same record
	}}
	m.lookAt(2*d + time.Second)
	require.Equal(t, m.shard.Name, *m.lease().Spec.HolderIdentity)
}

func TestLateCacheTakesNothing(t *testing.T) {
	m := newMonitor(t)
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.look()

	m.Client = late{m.Client, m.lease()}
	m.shard.Clock = testclock.NewFakeClock(start)
	require.NoError(t, m.shard.Renew(t.Context()))

	result := m.lookAt(3 * d)
	require.Equal(t, m.shard.Name, *m.lease().Spec.HolderIdentity)
	require.Equal(t, "ready", m.state())
	require.Equal(t, d, result.RequeueAfter)
}

// abandon makes the shard release its Lease at the start, and returns when that is to be deleted.
func (m *monitor) abandon() time.Duration {
	m.t.Helper()
	require.NoError(m.t, m.shard.Acquire(m.t.Context()))
	require.NoError(m.t, m.shard.Release(m.t.Context()))
	m.look()

	return lease.RecordOf(m.lease()).Duration + lease.OrphanedAfter
}

func TestLeaseThatIsTakenBackIsNotDeleted(t *testing.T) {
	m := newMonitor(t)
	due := m.abandon()

	m.Live = afterRead{m.Client, func() { require.NoError(t, m.shard.Acquire(t.Context())) }}
	m.lookAt(due)
	require.NotNil(t, m.lease())
	require.Equal(t, m.shard.Name, *m.lease().Spec.HolderIdentity)

	m.look()
	require.Equal(t, "ready", m.state())
}

// meddled is a client that lets something happen right before it writes, and counts its patches.
type meddled struct {
	client.Client

	before, beforePatch func()
	patches             int
}

func (c *meddled) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	c.before()
	return c.Client.Delete(ctx, obj, opts...)
}

func (c *meddled) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	c.before()
	return c.Client.Update(ctx, obj, opts...)
}

func (c *meddled) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	c.patches++
	if c.beforePatch != nil {
		c.beforePatch()
	}

	return c.Client.Patch(ctx, obj, patch, opts...)
}

func TestShardThatRenewsRightBeforeTheTakeOverKeepsItsLease(t *testing.T) {
	for name, change := range map[string]func(*monitor) error{
		"renewed": func(m *monitor) error { return m.shard.Renew(m.t.Context()) },
		"deleted": func(m *monitor) error { return m.shard.Delete(m.t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMonitor(t)
			require.NoError(t, m.shard.Acquire(t.Context()))
			m.look()

			m.shard.Clock = testclock.NewFakeClock(start)
			m.Client = &meddled{Client: m.Client, before: func() { require.NoError(t, change(m)) }}
			m.lookAt(2*d + time.Second)

			if l := m.lease(); l != nil {
				require.Equal(t, m.shard.Name, *l.Spec.HolderIdentity)
			}
			require.Empty(t, m.events.Events)
		})
	}
}

func TestLeaseThatChangesRightBeforeItsDeletionStays(t *testing.T) {
	for name, change := range map[string]func(*monitor) error{
		"taken back": func(m *monitor) error { return m.shard.Acquire(m.t.Context()) },
		"made again": func(m *monitor) error {
			if err := m.shard.Delete(m.t.Context()); err != nil {
				return err
			}

			return m.shard.Acquire(m.t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMonitor(t)
			due := m.abandon()

			m.Client = &meddled{Client: m.Client, before: func() { require.NoError(t, change(m)) }}
			m.lookAt(due)
			require.NotNil(t, m.lease())
			require.Equal(t, m.shard.Name, *m.lease().Spec.HolderIdentity)
			require.Empty(t, m.events.Events)
		})
	}
}

func TestPeopleAreTold(t *testing.T) {
	m := newMonitor(t)
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.look()
	m.lookAt(2*d + time.Second)
	require.Equal(t, "Warning ShardFailed Shard "+m.id().String()+
		" has not renewed its Lease for 21s: took over the Lease, its objects go to other shards", <-m.events.Events)

	m.look()
	m.lookAt(time.Hour)
	require.Contains(t, <-m.events.Events, "Normal ShardCollected Shard "+m.id().String())
	require.Nil(t, m.lease())
}
