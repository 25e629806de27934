package engine

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
	"github.com/clusterring/clusterring/services/rebalancer/takeover"
	"github.com/clusterring/clusterring/tools/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m)) }

// requests counts what an engine asks of the API server.
type requests struct {
	next http.RoundTripper

	mu   sync.Mutex
	seen []string
}

func (r *requests) RoundTrip(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	r.seen = append(r.seen, req.Method+" "+req.URL.Query().Get("watch")+" "+req.URL.Path)
	r.mu.Unlock()

	return r.next.RoundTrip(req)
}

func (r *requests) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()

	return len(r.seen)
}

// allOf selects one namespace alone.
type allOf string

func (a allOf) Selects(_ context.Context, namespace string, _ labels.Selector) (bool, error) {
	return namespace == string(a), nil
}

// An engine at rest asks nothing, however many objects there are and however much time goes by.
func TestAtRestNothingIsAsked(t *testing.T) {
	plane := localplane.Shared(t)
	ns := plane.Namespace(t)
	ring := "rest-" + ns
	shard := map[string]string{v1alpha1.ShardLabel(ring): "a"}

	create := func(name string, l map[string]string) *corev1.ConfigMap {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: l}}
		require.NoError(t, plane.Client.Create(t.Context(), cm))

		return cm
	}
	for i := range 20 {
		create(fmt.Sprintf("at-rest-%d", i), shard)
	}

	counted := &requests{}
	cfg := rest.CopyConfig(plane.Config)
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		counted.next = rt
		return counted
	})

	httpClient, err := rest.HTTPClientFor(cfg)
	require.NoError(t, err)
	api, err := objects.Connect(cfg, httpClient)
	require.NoError(t, err)

	clk := testclock.NewFakeClock(time.Unix(1_000_000_000, 0))
	changed := make(chan struct{}, 1)
	e := New(Config{
		Ring: ring, Objects: objects.NewClient(api, ring), Guard: takeover.New(ring, plane.Client, clk), Namespaces: allOf(ns),
		Limits: Limits{Workers: 2, Total: 10, PerShard: 5, DrainTimeout: time.Minute, Settle: time.Second}, Clock: clk,
		Changed: func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		},
		Late: func(objects.ID, string, time.Duration) {},
	})
	e.SetTarget(target(ring))

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})

	go func() {
		defer close(ended)
		e.Run(ctx)
	}()

	// Time goes by only when the test says so: the settle period has to pass.
	require.Eventually(t, func() bool {
		clk.Step(time.Second)
		return e.Report().Settled
	}, 20*time.Second, 10*time.Millisecond)

	before := counted.count()

	for range 48 {
		clk.Step(time.Hour)
	}

	// What the steps have set off has been asked before this object is labelled: one patch, and nothing else.
	late := create("late", nil)
	require.Eventually(t, func() bool {
		require.NoError(t, plane.Client.Get(t.Context(), client.ObjectKeyFromObject(late), late))
		return late.Labels[v1alpha1.ShardLabel(ring)] == "a"
	}, 20*time.Second, 10*time.Millisecond)

	counted.mu.Lock()
	after := counted.seen[before:]
	counted.mu.Unlock()
	require.Len(t, after, 1, "at rest nothing is asked")
	require.True(t, strings.HasPrefix(after[0], "PATCH"), after[0])

	cancel()
	<-ended
}

func target(ring string) *Target {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.AddSpecific(corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		schema.GroupVersionResource{Version: "v1", Resource: "configmap"}, meta.RESTScopeNamespace)

	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", Labels: map[string]string{v1alpha1.LabelClusterRing: ring}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("a")},
	}

	return &Target{
		View: membership.NewView(ring, []*coordinationv1.Lease{lease}, nil),
		Set: resources.Resolve(mapper, v1alpha1.ClusterRingSpec{
			Resources: []v1alpha1.RingResource{{Resource: "configmaps"}},
		}),
		Leaving:  map[schema.GroupResource]bool{},
		Selector: labels.Everything(),
	}
}
