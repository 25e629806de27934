package rings

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

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

// settle reconciles until the ring has converged.
func (s *stepped) settle() {
	s.Helper()

	want := view(s.fixture).Fingerprint()
	require.Eventually(s, func() bool {
		_, err := s.reconcileOnce()
		require.NoError(s, err)

		return s.assignment().Fingerprint == want
	}, 30*time.Second, 10*time.Millisecond)
}

func (s *stepped) assignment() v1alpha1.AssignmentStatus {
	s.Helper()

	ring := &v1alpha1.ClusterRing{}
	require.NoError(s, s.live.Get(s.Context(), client.ObjectKeyFromObject(s.Ring), ring))
	require.NotNil(s, ring.Status.Assignment)

	return *ring.Status.Assignment
}

// oldCopies makes reads of rings return an old copy, like a cache that lags.
func oldCopies(old *atomic.Pointer[v1alpha1.ClusterRing]) func(
	context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption,
) error {
	return func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
		ring, ok := obj.(*v1alpha1.ClusterRing)
		if o := old.Load(); ok && o != nil {
			o.DeepCopyInto(ring)
			return nil
		}

		return c.Get(ctx, key, obj, opts...)
	}
}
