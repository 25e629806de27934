package rings

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/move"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// clusterRings is what a ring is.
var clusterRings = ringtest.Kind[*v1alpha1.ClusterRing]{
	New: func(name string, namespaces map[string]string) *v1alpha1.ClusterRing {
		return &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ClusterRingSpec{
			Resources: []v1alpha1.RingResource{{
				Resource: "configmaps", ControlledResources: []v1alpha1.ControlledResource{{Resource: "secrets"}},
			}},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: namespaces},
		}}
	},
	Labels:     func(r *v1alpha1.ClusterRing) (shard, drain string) { return r.LabelKeys().Shard, r.LabelKeys().Drain },
	Announced:  func(r *v1alpha1.ClusterRing) string { return r.Spec.ShardLabel },
	Conditions: func(r *v1alpha1.ClusterRing) []metav1.Condition { return r.Status.Conditions },
}

type fixture = ringtest.Fixture[*v1alpha1.ClusterRing]

// stepped is a reconciler with the permissions of its service, which only the test calls. The test can interfere with
// the requests of its client.
type stepped struct {
	*Reconciler
	*fixture
	live client.WithWatch
}

// view returns the view of the current Leases of a ring.
func view(w *fixture) *membership.View {
	w.Helper()

	return membership.RulesOf(w.Ring).View(w.Ring.Name, w.Leases(), nil)
}

// namesOf returns n names of ConfigMaps whose keys the shard currently owns.
func namesOf(w *fixture, shard string, n int) []string {
	w.Helper()

	v := view(w)

	return w.NamesOf(shard, n, func(name string) string {
		owner, _ := v.Owner(key.Key{Kind: "ConfigMap", Namespace: w.Namespace, Name: name})

		return owner
	})
}

func newStepped(w *fixture, interfere interceptor.Funcs) *stepped {
	w.Helper()

	cfg, err := clientcmd.BuildConfigFromFlags("", w.Plane.ServiceKubeconfig(w, "rebalancer"))
	require.NoError(w, err)

	cfg.QPS = -1 // there is no cache, and other tests leave many objects to read
	live, err := client.NewWithWatch(cfg, client.Options{Scheme: w.Client.Scheme()})
	require.NoError(w, err)
	httpClient, err := rest.HTTPClientFor(cfg)
	require.NoError(w, err)
	api, err := feed.Connect(cfg, httpClient, feed.Bounds{PerSecond: 1000, AtOnce: 16})
	require.NoError(w, err)

	discovery, err := resources.Connect(cfg, httpClient)
	require.NoError(w, err)

	known := resources.NewResolver(discovery, clock.RealClock{}, logr.Discard())

	c := interceptor.NewClient(live, interfere)
	r := New(w.Context(), Config{
		Name: "rebalancer", Objects: api, Resources: known, Index: membership.NewIndex(),
		Limits: engine.Limits{Workers: 4, Total: 10, PerShard: 10, DrainTimeout: time.Minute, Settle: time.Millisecond},
		Clock:  clock.RealClock{},
		Tenure: &clusterring.Tenure{
			Client: c, Live: live, Clock: clock.RealClock{}, Recorder: events.NewFakeRecorder(100),
		},
	})
	r.status.Clock = testclock.NewFakePassiveClock(time.Unix(1_000_000_000, 0))
	r.enqueue = func(string) {}

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)

	go func() { ended <- r.fleet.Start(ctx) }()
	go func() { ended <- known.Start(ctx) }()

	w.Cleanup(func() {
		cancel()
		require.NoError(w, <-ended)
		require.NoError(w, <-ended)
	})
	require.NoError(w, known.Await(ctx))
	require.Eventually(w, func() bool {
		r.fleet.mu.Lock()
		defer r.fleet.mu.Unlock()

		return r.fleet.ctx != nil
	}, 30*time.Second, time.Millisecond)

	return &stepped{fixture: w, live: live, Reconciler: r}
}

func (s *stepped) reconcileOnce() (reconcile.Result, error) {
	s.Helper()

	// The state that the watch of Leases would have delivered by now.
	var list coordinationv1.LeaseList
	require.NoError(s, s.live.List(s.Context(), &list, client.MatchingLabels{contract.LabelClusterRing: s.Ring.Name}))

	for i := range list.Items {
		s.Index.Upsert(&list.Items[i])
	}

	return s.Reconcile(s.Context(), clusterring.Request(s.Ring.Name))
}

// step reconciles once, without an error, and returns when the next time is.
func (s *stepped) step() time.Duration {
	s.Helper()

	result, err := s.reconcileOnce()
	require.NoError(s, err)

	return result.RequeueAfter
}

// engine returns the engine of the ring.
func (s *stepped) engine() *running {
	s.Helper()

	return s.fleet.engine(s.Ring.Name, s.Ring.LabelKeys())
}

// read returns the current copy of the ring.
func (s *stepped) read() *v1alpha1.ClusterRing {
	s.Helper()

	ring := &v1alpha1.ClusterRing{}
	require.NoError(s, s.live.Get(s.Context(), client.ObjectKeyFromObject(s.Ring), ring))

	return ring
}

// settle reconciles until the ring has converged.
func (s *stepped) settle() {
	s.Helper()

	want := view(s.fixture).Fingerprint()
	require.Eventually(s, func() bool {
		s.step()

		return s.assignment().Fingerprint == want
	}, 30*time.Second, 10*time.Millisecond)
}

func (s *stepped) assignment() v1alpha1.AssignmentStatus {
	s.Helper()

	ring := s.read()
	require.NotNil(s, ring.Status.Assignment)

	return *ring.Status.Assignment
}

// oldCopies makes reads of rings return an old copy, like a cache that lags.
func oldCopies(old *atomic.Pointer[v1alpha1.ClusterRing]) func(
	context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption,
) error {
	return func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object,
		opts ...client.GetOption) error {
		ring, ok := obj.(*v1alpha1.ClusterRing)
		if o := old.Load(); ok && o != nil {
			o.DeepCopyInto(ring)
			return nil
		}

		return c.Get(ctx, key, obj, opts...)
	}
}

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

// While status.assignment.fingerprint matches the current shards, the assigner assigns children to the shards of their
// owners' keys. The fingerprint must therefore be removed before the first owner is drained.
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

			e := s.engine()
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

			s.step()
			require.NotSame(t, old, e.Target())
			require.Empty(t, s.assignment().Fingerprint)
			require.Equal(t, "configmaps", s.assignment().Resources[len(s.assignment().Resources)-1].Resource)
			w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, cm)
		})
	}
}

// An assigner may act on a change of the shards that the engine has never seen, because the status could not be written
// until the shards had changed back.
func TestChangeThatWasNotSetIsLookedInto(t *testing.T) {
	w := ringtest.New(t, clusterRings)
	w.Join("a", "b")
	require.NoError(t, w.Shards["b"].Release(t.Context()))

	var broken atomic.Bool

	s := newStepped(w, unwritable(&broken))
	s.settle()

	old := s.engine().Target()

	broken.Store(true)
	w.Join("b")

	_, err := s.reconcileOnce()
	require.ErrorContains(t, err, "the status cannot be written")
	require.NoError(t, w.Shards["b"].Release(t.Context()))
	broken.Store(false)

	s.step()

	now := s.engine().Target()
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

	s.step()

	unsettled := s.read()
	require.Empty(t, unsettled.Status.Assignment.Fingerprint)
	s.settle()

	before := s.engine().Target()

	require.NoError(t, w.Shards["b"].Release(t.Context()))
	old.Store(unsettled)

	wait := s.step()
	require.Positive(t, wait)
	require.Same(t, before, s.engine().Target())
	require.NotEmpty(t, s.assignment().Fingerprint)

	old.Store(nil)
	s.step()
	require.NotSame(t, before, s.engine().Target())
	require.Empty(t, s.assignment().Fingerprint)

	// When a shard joins or leaves, the lease monitor writes this into the status at the same moment. Objects do not wait
	// for that.
	s.settle()

	settled, before := s.read(), s.engine().Target()
	monitor := clusterring.StatusWriter{Client: w.Client, Owner: "leasemonitor", Clock: clock.RealClock{}}
	require.NoError(t, monitor.Write(t.Context(), settled, clusterring.StatusPart{Shards: new(int32(7))}))
	w.Join("b")
	old.Store(settled)
	s.step()
	require.NotSame(t, before, s.engine().Target())
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
		return s.engine().Target().View.AvailableShards()
	}

	require.NoError(t, w.Shards["a"].Release(t.Context()))

	s.step()
	require.Equal(t, []string{"b", "c"}, pursued(), "the first change counts at once")

	require.NoError(t, w.Shards["b"].Release(t.Context()))

	wait := s.step()
	require.Equal(t, 2*took, wait)
	require.Equal(t, []string{"b", "c"}, pursued())

	now.SetTime(now.Now().Add(wait))

	s.step()
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

	s.step()
	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, first, second)

	draining := func(n int) func() bool {
		return func() bool { return s.engine().Report().Draining == n }
	}
	require.Eventually(t, draining(2), 20*time.Second, time.Millisecond)

	now.SetTime(now.Now().Add(countsEvery))

	s.step()
	require.EqualValues(t, 2, s.assignment().Draining)

	w.Acknowledge(first)
	require.Eventually(t, draining(1), 20*time.Second, time.Millisecond)
	now.SetTime(now.Now().Add(countsEvery - time.Millisecond))

	wait := s.step()
	require.EqualValues(t, 2, s.assignment().Draining, "it is too early to update the numbers")
	require.Equal(t, time.Millisecond, wait)

	now.SetTime(now.Now().Add(wait))
	require.True(t, s.counts.AllowN(now.Now(), countsPerSecond))

	wait = s.step()
	require.EqualValues(t, 2, s.assignment().Draining, "other rings have used up the writes of numbers")
	require.Equal(t, countsEvery, wait)

	now.SetTime(now.Now().Add(wait))

	s.step()
	require.EqualValues(t, 1, s.assignment().Draining)

	w.Acknowledge(second)
	s.settle() // this change does not wait like numbers
	w.Assigned(v1alpha1.ReasonAllAssigned)
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

	wait := s.step()
	require.Positive(t, wait)

	old.Store(nil)

	s.step()
	require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))
	require.Contains(t, w.Ring.Finalizers, contract.FinalizerRebalancer)
}

// A namespace may be deleted and made anew with labels that the ring selects.
func TestNamespacesThatAreMadeAnewAreSeen(t *testing.T) {
	w := ringtest.New(t, clusterRings)
	s := newStepped(w, interceptor.Funcs{})
	s.settle()

	e := s.engine()
	except := *e.Target()
	except.Narrow = move.Narrowing{Except: []string{"left-out"}}
	e.SetTarget(&except)

	namespace := &corev1.Namespace{}
	namespace.Name, namespace.Labels = "left-out", w.Ring.Spec.NamespaceSelector.MatchLabels
	require.Equal(t, []string{w.Ring.Name}, s.fleet.concerned(nil, namespace))

	namespace.Name = "other"
	require.Empty(t, s.fleet.concerned(nil, namespace))

	namespace.Name, namespace.Labels = "left-out", nil
	require.Empty(t, s.fleet.concerned(nil, namespace))
}

// A namespace whose label flaps does not keep the ring in passes. The first change counts at once, and so does one
// after a calm hour.
func TestNamespaceThatFlaps(t *testing.T) {
	w := ringtest.New(t, clusterRings)
	s := newStepped(w, interceptor.Funcs{})
	s.settle()

	now := testclock.NewFakeClock(time.Unix(1_000_000_000, 0))
	s.status.Clock = now
	e := s.engine()
	in, out := &corev1.Namespace{}, &corev1.Namespace{}
	in.Labels = w.Ring.Spec.NamespaceSelector.MatchLabels

	flap := func() (looks int64) {
		before := e.Target().Revision

		require.Equal(t, []string{w.Ring.Name}, s.fleet.concerned(in, out))

		in, out = out, in

		wait := s.step()

		if looks = e.Target().Revision - before; looks == 0 {
			require.Positive(t, wait)
			require.LessOrEqual(t, wait, 80*time.Second)
		}

		return looks
	}

	require.EqualValues(t, 1, flap(), "the first change counts at once")

	looks := int64(0)

	for range 600 { // ten minutes
		now.Step(time.Second)

		looks += flap()
	}

	require.LessOrEqual(t, looks, int64(6+10))

	for flap() > 0 { // a change that has not counted yet is left
		now.Step(time.Second)
	}

	now.Step(80 * time.Second)

	before := e.Target().Revision
	s.settle()
	require.EqualValues(t, 1, e.Target().Revision-before, "the last change counts in the end")

	now.Step(time.Hour)
	require.EqualValues(t, 1, flap(), "at once")
}
