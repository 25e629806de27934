package leasemonitor

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// Tests wait for conditions, this long at most and looking this often.
const (
	patience = 30 * time.Second
	interval = 20 * time.Millisecond
)

// world is a ring with a namespace for its shards.
type world struct {
	t     *testing.T
	plane *localplane.Plane
	ring  string
	ns    string
	// refused tells which writes of Leases are refused; nil for none.
	refused atomic.Pointer[func(*http.Request) bool]
}

func newWorld(t *testing.T) *world {
	t.Helper()

	plane := localplane.Shared(t)
	w := &world{t: t, plane: plane, ns: plane.Namespace(t)}
	w.ring = "ring-of-" + w.ns
	require.NoError(t, plane.Client.Create(t.Context(), &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: w.ring},
		Spec:       v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Resource: "configmaps"}}},
	}))

	return w
}

// acquire makes a shard that holds its Lease.
func (w *world) acquire(name string, duration time.Duration) *leasetest.Shard {
	w.t.Helper()

	shard := &leasetest.Shard{Client: w.plane.Client, Ring: w.ring, Namespace: w.ns, Name: name, Duration: duration}
	require.NoError(w.t, shard.Acquire(w.t.Context()))

	return shard
}

// join makes a shard that renews its Lease until it is told to crash.
func (w *world) join(name string, duration time.Duration) (shard *leasetest.Shard, crash func()) {
	w.t.Helper()

	shard = w.acquire(name, duration)
	ctx, cancel := context.WithCancel(w.t.Context())

	done := make(chan error, 1)
	go func() { done <- shard.Run(ctx) }()

	stopped := false
	crash = func() {
		cancel()

		if !stopped {
			stopped = true
			require.NoError(w.t, <-done)
		}
	}
	w.t.Cleanup(crash)

	return shard, crash
}

func (w *world) lease(name string) *coordinationv1.Lease {
	w.t.Helper()

	l := &coordinationv1.Lease{}
	require.NoError(w.t, w.plane.Client.Get(w.t.Context(), types.NamespacedName{Namespace: w.ns, Name: name}, l))

	return l
}

// waitState waits until the shard is labelled with the state.
func (w *world) waitState(name, state string) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return w.lease(name).Labels[contract.LabelState] == state },
		patience, interval, "shard %s never became %s", name, state)
}

// waitShards waits until the ring's status shows these numbers, and Ready.
func (w *world) waitShards(available, shards int32) {
	w.t.Helper()

	require.Eventually(w.t, func() bool {
		ring := w.get()
		return ring.Status.Shards == shards && ring.Status.AvailableShards == available
	}, patience, interval, "want %d of %d shards", available, shards)
}

// TestServiceUnderItsOwnRights runs the command as it runs in a cluster, but for the addresses.
func TestServiceUnderItsOwnRights(t *testing.T) {
	w := newWorld(t)
	other := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "not-a-shard"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("someone"), LeaseDurationSeconds: ptr.To[int32](1)},
	}
	require.NoError(t, w.plane.Client.Create(t.Context(), other))

	w.run()
	w.waitShards(0, 0)
	_, crash := w.join("crashes", 4*time.Second)
	graceful, leave := w.join("leaves", 10*time.Second)
	w.join("stays", 10*time.Second)
	w.waitShards(3, 3)
	w.waitState("crashes", "ready")

	// The Lease of a ring that does not exist yet has no event when that is created.
	early := &leasetest.Shard{Client: w.plane.Client, Ring: "later-" + w.ns, Namespace: w.ns, Name: "early",
		Duration: time.Hour}
	require.NoError(t, early.Acquire(t.Context()))
	require.NoError(t, w.plane.Client.Create(t.Context(), &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: early.Ring},
		Spec:       v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Resource: "configmaps"}}},
	}))
	w.waitState("early", "ready")

	leave()
	require.NoError(t, graceful.Release(t.Context()))
	w.waitState("leaves", "dead")
	w.waitShards(2, 3)

	crash()
	w.waitState("crashes", "dead")
	w.waitShards(1, 3)
	require.Equal(t, contract.LeaseControllerIdentity, *w.lease("crashes").Spec.HolderIdentity)

	require.Eventually(t, func() bool { return w.hasEvent("ShardFailed") }, patience, interval)
	require.Equal(t, other.ResourceVersion, w.lease(other.Name).ResourceVersion, "a Lease of no ring was touched")
}

// hasEvent reports whether there is an event of that reason on the ring.
func (w *world) hasEvent(reason string) bool {
	w.t.Helper()

	all := &eventsv1.EventList{}
	require.NoError(w.t, w.plane.Client.List(w.t.Context(), all))

	return slices.ContainsFunc(all.Items, func(e eventsv1.Event) bool {
		return e.Reason == reason && e.Regarding.Kind == "ClusterRing" && e.Regarding.Name == w.ring
	})
}

// TestStandbyKnowsTheAges lets a shard fall silent, replaces the leader halfway, and sees the next leader take the
// Lease when it is due by the time that both have measured: not earlier, and not after another full wait.
func TestStandbyKnowsTheAges(t *testing.T) {
	const d = 100 * time.Second

	w := newWorld(t)
	clock := newClock()
	start := clock.Now()
	w.acquire("silent", d)

	first := newInstance(w, clock)
	first.waitElected()
	w.waitState("silent", "ready")
	second := newInstance(w, clock)

	// From here on the time of the test passes in small steps, while both look at the API server.
	step := func() { pass(first, second) }
	require.Eventually(t, func() bool { step(); return w.lease("silent").Labels[contract.LabelState] == "expired" },
		patience, interval)
	require.Less(t, clock.Since(start), 3*d/2, "the first leader was late")

	first.stop()
	second.waitElected()

	step = func() { pass(second) }
	require.Eventually(t, func() bool {
		step()
		return *w.lease("silent").Spec.HolderIdentity == contract.LeaseControllerIdentity
	}, patience, interval)

	taken := w.lease("silent").Spec.AcquireTime.Sub(start)
	require.Greater(t, taken, 2*d, "the second leader stole the Lease")
	require.Less(t, taken, 5*d/2, "the second leader waited again")
	second.stop()
}

func newClock() *testclock.FakeClock {
	return testclock.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
}

// instance is a replica of the service whose clock is the test's.
type instance struct {
	t       *testing.T
	manager manager.Manager
	runtime *kit.Runtime
	clock   *testclock.FakeClock
	line    *line
	cancel  context.CancelFunc
	done    chan error
}

// newInstance starts an instance, and waits until it is ready.
func newInstance(w *world, clock *testclock.FakeClock) *instance {
	w.t.Helper()

	i := startInstance(w, clock)
	require.Eventually(w.t, func() bool { return i.runtime.Ready() == nil }, patience, interval)

	return i
}

func startInstance(w *world, clock *testclock.FakeClock) *instance {
	w.t.Helper()

	t, line := w.t, newLine(w)
	own, err := clientcmd.BuildConfigFromFlags("", w.plane.ServiceKubeconfig(t, name))
	require.NoError(t, err)
	own.Wrap(line.wrap)

	mgr, err := manager.New(own, manager.Options{
		Scheme: w.plane.Client.Scheme(),
		Logger: logr.Discard(),
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&coordinationv1.Lease{}: kit.OfRing(),
		}},
		Metrics:                       metricsserver.Options{BindAddress: "0"},
		Controller:                    config.Controller{SkipNameValidation: new(true)},
		LeaderElection:                true,
		LeaderElectionID:              name,
		LeaderElectionNamespace:       contract.SystemNamespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 ptr.To(30 * time.Second),
		RenewDeadline:                 ptr.To(25 * time.Second),
		RetryPeriod:                   ptr.To(100 * time.Millisecond),
	})
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	i := &instance{
		t: t, manager: mgr, clock: clock, line: line, cancel: cancel, done: make(chan error, 1),
		runtime: &kit.Runtime{Manager: mgr, Options: &kit.Options{Namespace: contract.SystemNamespace}, Log: logr.Discard(),
			Clock: clock},
	}

	require.NoError(t, setup(ctx, i.runtime, &options{}))
	go func() { i.done <- mgr.Start(ctx) }()
	t.Cleanup(i.stop)

	return i
}

// stop ends the instance, which releases its leadership.
func (i *instance) stop() {
	i.t.Helper()
	i.cancel()

	if i.done != nil {
		require.NoError(i.t, <-i.done)
		i.done = nil
	}
}

func (i *instance) waitElected() {
	i.t.Helper()
	require.Eventually(i.t, func() bool {
		select {
		case <-i.manager.Elected():
			return true
		default:
			return false
		}
	}, patience, interval)
}

// run runs the command until the test ends.
func (w *world) run() {
	w.t.Helper()

	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	cmd := NewCommand()
	cmd.SetArgs([]string{"--kubeconfig", w.plane.ServiceKubeconfig(w.t, name), "--metrics-bind-address", "0",
		"--health-probe-bind-address", "0"})
	cmd.SetErr(w.t.Output())

	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()

	w.t.Cleanup(func() {
		cancel()
		require.NoError(w.t, <-done)
	})
}

// TestColumns shows what kubectl get clusterrings prints, without and with -o wide, after other services have reported.
func TestColumns(t *testing.T) {
	w := newWorld(t)
	w.acquire("a", time.Hour)
	w.update(func(ring *v1alpha1.ClusterRing) {
		ring.Spec.ActiveShards, ring.Spec.Sharder = new(int32(2)), v1alpha1.SharderServices
	})
	w.run()
	w.waitShards(1, 1)

	ring := w.get()
	others := clusterring.StatusWriter{Client: w.plane.Client, Owner: "others", Clock: clock.RealClock{}}
	require.NoError(t, others.Write(t.Context(), ring, clusterring.StatusPart{ShardLabel: ring.LabelKeys().Shard,
		Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionWebhookRegistered, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonRegistered},
			{Type: v1alpha1.ConditionFenced, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonFenceFailed},
			{Type: v1alpha1.ConditionAssigned, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonMoving,
				Message: "3 objects move"},
		}}))
	require.Eventually(t, func() bool {
		return meta.IsStatusConditionFalse(w.get().Status.Conditions, v1alpha1.ConditionReady)
	}, patience, interval, "the ring is not Ready without its fence")

	cfg := rest.CopyConfig(w.plane.Config)
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(w.plane.Client.Scheme()).WithoutConversion()
	c, err := rest.UnversionedRESTClientFor(cfg)
	require.NoError(t, err)
	body, err := c.Get().AbsPath("apis", v1alpha1.GroupVersion.String(), "clusterrings", w.ring).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(t.Context()).Raw()
	require.NoError(t, err)

	var table metav1.Table
	require.NoError(t, json.Unmarshal(body, &table))

	// By priority: what kubectl always prints, and what it adds with -o wide.
	columns := map[int32]string{}
	for i, d := range table.ColumnDefinitions {
		columns[d.Priority] += fmt.Sprintf("%s=%v ", d.Name, table.Rows[0].Cells[i])
	}

	require.Regexp(t, "^Name="+w.ring+" Ready=False Available=1 Shards=1 Age=[0-9]+s $", columns[0])
	require.Equal(t, "Sharder=Services Active=2 Shard Label="+ring.LabelKeys().Shard+" Webhook="+v1alpha1.ReasonRegistered+
		" Fence="+v1alpha1.ReasonFenceFailed+" Assigned="+v1alpha1.ReasonMoving+" Message=3 objects move ", columns[1])
}

// TestRingsWithOneLabel: only the older ring is Ready and has a fence, until it is gone. Shards that follow another
// label are reported.
func TestRingsWithOneLabel(t *testing.T) {
	w := newWorld(t)
	label := w.ns + ".example.com/shard"

	create := func(name string) *v1alpha1.ClusterRing {
		ring := &v1alpha1.ClusterRing{
			ObjectMeta: metav1.ObjectMeta{Name: name + "-" + w.ns},
			Spec: v1alpha1.ClusterRingSpec{
				ShardLabel: label, ShardNames: []string{"blue",
					"green"}, Resources: []v1alpha1.RingResource{{Resource: "configmaps"}},
				Fence: &v1alpha1.Fence{Mode: v1alpha1.FenceEnforce,
					ServiceAccounts: []v1alpha1.ServiceAccountReference{{Namespace: w.ns, Name: "controller"}}},
			},
		}
		require.NoError(t, w.plane.Client.Create(t.Context(), ring))

		return ring
	}
	older, younger := create("a"), create("b") // of rings of the same second, the name decides

	for name, announced := range map[string]string{"right": label, "wrong": ""} {
		for _, ring := range []string{older.Name, younger.Name} {
			shard := &leasetest.Shard{Client: w.plane.Client, Ring: ring, Namespace: w.ns, Name: name + "-of-" + ring,
				ShardLabel: announced}
			require.NoError(t, shard.Acquire(t.Context()))
		}
	}

	w.run()

	is := func(ring *v1alpha1.ClusterRing, kind, reason string) string {
		var c *metav1.Condition

		require.Eventually(t, func() bool {
			require.NoError(t, w.plane.Client.Get(t.Context(), client.ObjectKeyFromObject(ring), ring))
			c = meta.FindStatusCondition(ring.Status.Conditions, kind)

			return c != nil && c.Reason == reason
		}, patience, interval, "%s of %s should have the reason %s", kind, ring.Name, reason)

		return c.Message
	}
	data := func(name string) map[string]string {
		parameter := &v1alpha1.PolicyParameter{}
		require.NoError(t, client.IgnoreNotFound(w.plane.Client.Get(t.Context(), client.ObjectKey{Name: name}, parameter)))

		return parameter.Data
	}

	is(older, v1alpha1.ConditionReady, v1alpha1.ReasonReconciliationSucceeded)
	require.Contains(t, is(older, v1alpha1.ConditionShardsAvailable, v1alpha1.ReasonShardsIgnored),
		"1 of 2 shards available; shard "+w.ns+"/wrong-of-"+older.Name+": the shard does not announce by which label it selects its objects, and spec.shardLabel of the ring is "+label)
	require.Contains(t, is(younger, v1alpha1.ConditionReady, v1alpha1.ReasonShardLabelInUse),
		"ring "+older.Name+", which is older, uses the same spec.shardLabel "+label)

	require.Eventually(t, func() bool { return data(contract.FenceName(older.Name))["label"] == label }, patience,
		interval)
	require.Eventually(t, func() bool {
		shards := w.described()
		return shards["label."+younger.Name] == label && shards["names."+older.Name] == "blue\ngreen"
	}, patience, interval, "the policy about Leases knows every ring")
	require.NotContains(t, w.described(), "label."+w.ring)
	require.Empty(t, data(contract.FenceName(younger.Name)),
		"a fence of the younger ring would be about the labels of the older one")

	require.NoError(t, w.plane.Client.Delete(t.Context(), older))
	is(younger, v1alpha1.ConditionReady, v1alpha1.ReasonReconciliationSucceeded)
	require.Eventually(t, func() bool { return data(contract.FenceName(younger.Name))["label"] == label }, patience,
		interval)

	require.NoError(t, w.plane.Client.Delete(t.Context(), younger))
}
