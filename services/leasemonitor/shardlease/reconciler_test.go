package shardlease_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"gotest.tools/v3/golden"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
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
	// meddle, unless it is nil, decides what becomes of a request about Leases.
	meddle func(request) error
}

// request is one of a monitor about Leases.
type request struct {
	// verb is get, list, patch, update, or delete; live get and live list do not ask the cache.
	verb  string
	limit int64 // of list
	send  func() error
}

type api = client.WithWatch

// through returns a client whose requests about Leases the test may meddle with. It lists only Leases in the namespace
// of the shard.
func (m *monitor) through(own api, prefix string) client.Client {
	pass := func(verb string, obj any, limit int64, send func() error) error {
		_, one := obj.(*coordinationv1.Lease)
		if _, all := obj.(*coordinationv1.LeaseList); m.meddle == nil || !one && !all {
			return send()
		}

		return m.meddle(request{prefix + verb, limit, send})
	}

	return interceptor.NewClient(own, interceptor.Funcs{
		Get: func(ctx context.Context, c api, key client.ObjectKey, o client.Object, by ...client.GetOption) error {
			return pass("get", o, 0, func() error { return c.Get(ctx, key, o, by...) })
		},
		List: func(ctx context.Context, c api, all client.ObjectList, by ...client.ListOption) error {
			options := (&client.ListOptions{}).ApplyOptions(append(by, client.InNamespace(m.shard.Namespace)))

			return pass("list", all, options.Limit, func() error { return c.List(ctx, all, options) })
		},
		Patch: func(ctx context.Context, c api, o client.Object, p client.Patch, by ...client.PatchOption) error {
			return pass("patch", o, 0, func() error { return c.Patch(ctx, o, p, by...) })
		},
		Update: func(ctx context.Context, c api, o client.Object, by ...client.UpdateOption) error {
			return pass("update", o, 0, func() error { return c.Update(ctx, o, by...) })
		},
		Delete: func(ctx context.Context, c api, o client.Object, by ...client.DeleteOption) error {
			return pass("delete", o, 0, func() error { return c.Delete(ctx, o, by...) })
		},
	})
}

// at lets something happen right before each request of the verb, or right after it.
func (m *monitor) at(verb string, after bool, do func()) {
	m.meddle = func(r request) error {
		if r.verb == verb && !after {
			do()
		}

		err := r.send()

		if r.verb == verb && after {
			do()
		}

		return err
	}
}

func newMonitor(t *testing.T) *monitor {
	t.Helper()

	plane := localplane.Shared(t)
	config, err := clientcmd.BuildConfigFromFlags("", plane.ServiceKubeconfig(t, "leasemonitor"))
	require.NoError(t, err)

	config.QPS = -1
	own, err := client.NewWithWatch(config, client.Options{Scheme: plane.Client.Scheme()})
	require.NoError(t, err)

	namespace := plane.Namespace(t) // and the name of a ring of its own: shards that die together are judged together
	clock, recorder := testclock.NewFakeClock(start), events.NewFakeRecorder(100)
	ages := &lease.Observer{Sight: &lease.Sight{}}
	ages.Sight.Saw(start, start)

	m := &monitor{
		Reconciler: &shardlease.Reconciler{
			Clock: clock, Ages: ages, Events: recorder, NotTaken: &shardlease.NotTaken{},
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
	m.Client, m.Live = m.through(own, ""), m.through(own, "live ")
	m.exists(namespace)

	return m
}

// exists creates a ring.
func (m *monitor) exists(ring string) {
	m.t.Helper()
	require.NoError(m.t, m.admin.Create(m.t.Context(), &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: ring},
		Spec:       v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Group: "example.org", Resource: "widgets"}}},
	}))
}

// ring returns the shard's ring as it is.
func (m *monitor) ring() *v1alpha1.ClusterRing {
	m.t.Helper()

	ring := &v1alpha1.ClusterRing{}
	require.NoError(m.t, m.admin.Get(m.t.Context(), client.ObjectKey{Name: m.shard.Namespace}, ring))

	return ring
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

func TestLabelIsWrittenOnlyIfItIsWrong(t *testing.T) {
	m := newMonitor(t)
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.look()

	m.at("patch", false, func() { t.Error("it is right") })
	m.lookAt(d / 2)

	m.meddle = nil

	for _, edit := range []string{`"dead"`, `null`} {
		patch := []byte(`{"metadata":{"labels":{"` + contract.LabelState + `":` + edit + `}}}`)
		require.NoError(t, m.admin.Patch(t.Context(), m.lease(), client.RawPatch(types.MergePatchType, patch)))
		m.lookAt(d + time.Second)
		require.Equal(t, "expired", m.state(), "a label is no sign of life")
	}
}

// A Lease in a namespace that does not count is not a shard's, and is left alone until its namespace counts. So is one
// of no ring.
func TestLeaseInANamespaceThatDoesNotCountIsLeftAlone(t *testing.T) {
	m := newMonitor(t)
	ring := m.ring()
	ring.Spec.ShardNamespaces = []string{"elsewhere"}
	require.NoError(t, m.admin.Update(t.Context(), ring))

	ringless := m.shard.Ring
	for _, m.shard.Ring = range []string{"", ringless} {
		require.NoError(t, m.shard.Acquire(t.Context()))

		before, now := m.lease(), m.clock.Now().Sub(start)
		m.look()
		m.lookAt(now + 10*d)
		m.lookAt(now + time.Hour)
		require.Equal(t, before, m.lease())
	}

	ring = m.ring()
	ring.Spec.ShardNamespaces = append(ring.Spec.ShardNamespaces, m.shard.Namespace)
	require.NoError(t, m.admin.Update(t.Context(), ring))
	m.look()
	require.Equal(t, "uncertain", m.state())
}

// change is what happens to a Lease before or after a request.
type change struct {
	verb  string
	after bool
	do    func(*monitor)
}

// renew acquires the shard's Lease, no matter who holds it.
func renew(m *monitor) {
	m.shard.Clock = testclock.NewFakeClock(m.clock.Now())
	require.NoError(m.t, m.shard.Acquire(m.t.Context()))
}

func removed(m *monitor) { require.NoError(m.t, m.shard.Delete(m.t.Context())) }

// anew makes the very same record, because the shard's clock stands still.
func anew(m *monitor) {
	removed(m)
	require.NoError(m.t, m.shard.Acquire(m.t.Context()))
}

// Whatever happens to a Lease before the write, at whatever moment, it is not taken.
func TestShardThatComesBackInTimeKeepsItsLease(t *testing.T) {
	for name, happens := range map[string]change{
		"renewed after the read":  {"live get", true, renew},
		"renewed at the write":    {"update", false, renew},
		"made anew at the label":  {"patch", false, anew},
		"the read takes too long": {"live get", true, func(m *monitor) { m.clock.Step(3 * d) }},
		"gone at the label":       {"patch", false, removed},
		"gone at the write":       {"update", false, removed},
		"renewed after the cache": {"get", true, renew},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMonitor(t)
			require.NoError(t, m.shard.Acquire(t.Context()))
			m.look()

			m.at(happens.verb, happens.after, func() { happens.do(m) })
			m.lookAt(2*d + time.Second)

			if l := m.lease(); l != nil {
				require.Equal(t, m.shard.Name, *l.Spec.HolderIdentity)
			}

			if happens.verb == "get" {
				require.Equal(t, "ready", m.state(), "the cache decides nothing")
			}

			require.Empty(t, m.events.Events)
		})
	}
}

func TestLeaseThatChangesRightBeforeItsDeletionStays(t *testing.T) {
	for name, happens := range map[string]change{
		"taken back after the read": {"live get", true, renew},
		"taken back":                {"delete", false, renew},
		"made again":                {"delete", false, anew},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMonitor(t)
			require.NoError(t, m.shard.Acquire(t.Context()))
			require.NoError(t, m.shard.Release(t.Context()))
			m.look()

			m.at(happens.verb, happens.after, func() { happens.do(m) })
			m.lookAt(time.Second + lease.OrphanedAfter)
			require.NotNil(t, m.lease())
			require.Equal(t, m.shard.Name, *m.lease().Spec.HolderIdentity)
			require.Empty(t, m.events.Events)
		})
	}
}

// TestLifeOfAShard tells what becomes of a shard's Lease, moment by moment. The transcript is the specification.
func TestLifeOfAShard(t *testing.T) {
	m := newMonitor(t)

	var transcript strings.Builder
	fmt.Fprintf(&transcript, "%-14s %-18s %-10s %-24s %-4s %-5s %s\n", "time", "event", "state", "holder", "D", "moves",
		"look again after")

	at := func(since time.Duration, event string, act func() error) {
		t.Helper()
		m.pass(since)

		if act != nil {
			require.NoError(t, act())
		}

		result := m.look()

		line := fmt.Sprintf("%-14s %-18s ", since, event)
		if l := m.lease(); l == nil {
			line += "deleted"
		} else {
			line += fmt.Sprintf("%-10s %-24q %-4s %-5d %s", l.Labels[contract.LabelState], ptr.Deref(l.Spec.HolderIdentity, ""),
				fmt.Sprintf("%ds", *l.Spec.LeaseDurationSeconds), *l.Spec.LeaseTransitions, result.RequeueAfter)
		}
		fmt.Fprintln(&transcript, strings.TrimRight(line, " "))

		for len(m.events.Events) > 0 {
			fmt.Fprintln(&transcript, "  event:", strings.ReplaceAll(<-m.events.Events, m.shard.Namespace, "NAMESPACE"))
		}
	}

	acquire := func() error { return m.shard.Acquire(t.Context()) }
	renew := func() error {
		m.shard.Clock = testclock.NewFakeClock(m.clock.Now())
		return m.shard.Renew(t.Context())
	}
	release := func() error { return m.shard.Release(t.Context()) }

	at(0, "joins", acquire)
	at(5*time.Second, "renews", renew)
	at(15*time.Second-1, "is silent", nil)
	at(15*time.Second, "is silent", nil)
	at(20*time.Second, "renews late", renew)
	at(40*time.Second, "is silent", nil)
	at(40*time.Second+1, "is silent", nil)
	at(41*time.Second, "", nil)
	at(45*time.Second, "comes back", acquire)
	at(50*time.Second, "stops gracefully", release)
	at(50*time.Second+time.Minute, "is gone", nil)
	at(50*time.Second+time.Minute+time.Second, "is gone for long", nil)
	at(2*time.Minute, "joins again", acquire)

	golden.Assert(t, transcript.String(), "life.txt")

	for _, counter := range shardlease.Collectors() {
		require.InDelta(t, 1, testutil.ToFloat64(ofRing{counter, m.shard.Ring}), 0)
	}
}

// lost makes a ring for the shard whose status names these shards as lost.
func (m *monitor) lost(names ...string) {
	m.t.Helper()

	ring := m.ring()
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
	kept.Spec.RenewTime, kept.ResourceVersion = taken.Spec.RenewTime, taken.ResourceVersion
	kept.ManagedFields = taken.ManagedFields
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

	m.at("delete", false, func() { t.Error("it was deleted already") })
	require.Zero(t, m.lookAt(time.Hour).RequeueAfter, "its end is all that is to come")
	require.Equal(t, "orphaned", m.state())

	l = m.lease()
	l.Finalizers = nil
	require.NoError(t, m.admin.Update(t.Context(), l))
	require.Nil(t, m.lease())
}

// ended are the uids of Pods that have ended.
type ended map[types.UID]bool

func (e ended) Ended(uid types.UID) bool { return e[uid] }

func (e ended) Leases() <-chan event.TypedGenericEvent[*coordinationv1.Lease] { return nil }

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
		waits, unknown, takes bool
	}{
		"nobody waits":                      {},
		"nobody knows whether a Pod waits":  {waits: true, unknown: true}, // an offer only saves moves
		"a Pod waits, and does not take it": {waits: true},
		"a Pod waits, and takes it":         {waits: true, takes: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMonitor(t)
			m.meddle = func(r request) error { // everyone who may write Leases decides how large a list is
				if r.verb == "live list" {
					require.NotZero(t, r.limit, "it is read in pages")
				}

				if r.verb == "live list" && tc.unknown {
					return errors.New("no list")
				}

				return r.send()
			}
			m.Pods, m.shard.PodUID = ended{"uid-1": true}, "uid-1"
			require.NoError(t, m.shard.Acquire(t.Context()))
			m.edit(func(l *coordinationv1.Lease) { l.Annotations[contract.AnnotationPod] = "pod-1" })

			if tc.waits {
				require.NoError(t, m.admin.Create(t.Context(), &coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: m.id().Namespace, Name: "standby-pod-2",
						Labels: map[string]string{contract.LabelStandby: m.shard.Ring},
					},
					Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NewMicroTime(m.clock.Now()))},
				}))
			}

			m.look()

			if !tc.waits || tc.unknown {
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
