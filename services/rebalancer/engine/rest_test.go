package engine

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/takeover"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// requests records the requests of an engine to the API server.
type requests struct {
	next http.RoundTripper

	mu   sync.Mutex
	seen []string
}

func (r *requests) RoundTrip(req *http.Request) (*http.Response, error) {
	query := req.URL.Query()

	verb := req.Method

	switch {
	case query.Get("sendInitialEvents") == "true":
		verb = "LIST"
	case query.Has("watch"):
		verb = "WATCH"
	}

	r.mu.Lock()
	r.seen = append(r.seen, verb+" "+req.URL.Path+" "+query.Get("labelSelector")+suffix(query.Get("fieldSelector")))
	r.mu.Unlock()

	return r.next.RoundTrip(req)
}

func suffix(fields string) string {
	if fields == "" {
		return ""
	}

	return " " + fields
}

// since returns the requests after the first n.
func (r *requests) since(n int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()

	return slices.Clone(r.seen[n:])
}

// allOf selects one namespace.
type allOf string

func (a allOf) Selects(_ context.Context, namespace string, _ labels.Selector) (bool, error) {
	return namespace == string(a), nil
}

// resting is an engine for the ConfigMaps of one namespace. Its requests are recorded, and time passes only when the test says so.
type resting struct {
	*testing.T
	*requests
	e        *Engine
	clock    *testclock.FakeClock
	plane    *localplane.Plane
	ns, ring string
}

func newResting(t *testing.T) *resting {
	t.Helper()

	plane := localplane.Shared(t)
	r := &resting{T: t, requests: &requests{}, plane: plane, ns: plane.Namespace(t), clock: testclock.NewFakeClock(time.Unix(1_000_000_000, 0))}
	r.ring = "rest-" + r.ns

	cfg := rest.CopyConfig(plane.Config)
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		r.next = rt
		return r.requests
	})

	httpClient, err := rest.HTTPClientFor(cfg)
	require.NoError(t, err)
	api, err := feed.Connect(cfg, httpClient, feed.Bounds{PerSecond: 10000, AtOnce: 64})
	require.NoError(t, err)

	r.e = New(Config{
		Ring: r.ring, Objects: feed.NewClient(api, contract.LabelKeysOf(r.ring, "")), Guard: takeover.New(r.ring, plane.Client, r.clock), Namespaces: allOf(r.ns),
		Limits: Limits{Workers: 2, Total: 10, PerShard: 5, DrainTimeout: time.Minute, Settle: time.Second}, Clock: r.clock,
		Changed: func() {},
		Late:    func(feed.ID, string, time.Duration) {},
	})

	return r
}

// run runs the engine until the test ends, and returns when the ring has converged.
func (r *resting) run() {
	r.Helper()

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})

	go func() {
		defer close(ended)
		r.e.Run(ctx)
	}()

	r.Cleanup(func() {
		cancel()
		<-ended
	})
	r.settle()
}

// settle lets time pass until the ring has converged, because the settle period has to pass.
func (r *resting) settle() {
	r.Helper()
	r.eventually(func() bool {
		r.step()
		return r.e.Report().Converged
	})
}

// step lets a second pass, not faster than the API server answers: otherwise, its watches would seem to be silent.
func (r *resting) step() {
	require.NoError(r, r.plane.Client.Get(r.Context(), client.ObjectKey{Name: r.ns}, &corev1.Namespace{}))
	r.clock.Step(time.Second)
}

func (r *resting) eventually(condition func() bool) {
	r.Helper()
	require.Eventually(r, condition, time.Minute, 10*time.Millisecond)
}

// create creates an object of a shard, or without a shard if shard is "".
func (r *resting) create(name, shard string) *corev1.ConfigMap {
	r.Helper()

	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: name}}
	if shard != "" {
		cm.Labels = map[string]string{contract.ShardLabel(r.ring): shard}
	}

	require.NoError(r, r.plane.Client.Create(r.Context(), cm))

	return cm
}

// At rest, an engine sends only the requests of its audits, however many objects exist.
func TestAtRestNothingIsAskedButByTheAudit(t *testing.T) {
	r := newResting(t)
	for i := range 20 {
		r.create(fmt.Sprintf("at-rest-%d", i), "a")
	}

	r.e.SetTarget(target(r.ring))
	r.run()

	before := len(r.since(0))
	r.eventually(func() bool { // until an audit has ended; no time passes after it
		if r.passes(before) > 0 {
			return true
		}

		r.step()

		return false
	})
	r.eventually(func() bool { return r.e.Clock.Since(r.e.lastPass()) == 0 })

	before = len(r.since(0))

	for range 58 {
		r.clock.Step(time.Second)
	}

	// All requests that the steps have caused were sent before this object is labeled: it takes one patch and nothing else.
	late := r.create("late", "")
	r.eventuallyAssigned(late)

	after := r.since(before)
	require.Len(t, after, 1, "no requests should be sent at rest")
	require.True(t, strings.HasPrefix(after[0], "PATCH"), after[0])

	for want := 1; want < 4; want++ {
		began := r.clock.Now()
		r.eventually(func() bool {
			r.step()
			return r.passes(before) == want
		})
		require.True(t, want == 1 || r.clock.Since(began) >= auditEvery-time.Second, "audits should not be more frequent")
	}
}

// lastPass returns when the last pass over all objects ended.
func (e *Engine) lastPass() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()

	return e.passes.ended
}

// passes counts the passes over all labeled objects.
func (r *resting) passes(since int) int {
	return len(slices.DeleteFunc(r.since(since), func(request string) bool {
		return request != "LIST /api/v1/configmaps "+contract.ShardLabel(r.ring)
	}))
}

// Objects of shards that have lost no partitions are in their places. They are not visited to verify this immediately, because
// there may be very many. They are visited once when the shards have not changed for a while.
func TestDeathIsDealtWithWithoutALookAtAllObjects(t *testing.T) {
	r := newResting(t)
	all := target(r.ring)
	three := of(all, "a", "b", "c")

	for i := range 100 { // enough objects that some belong to a shard that joins, whatever the namespace is called
		name := fmt.Sprintf("at-rest-%d", i)
		owner, _ := three.View.Owner(key.Key{Kind: "ConfigMap", Namespace: r.ns, Name: name})

		if owner != "c" {
			r.create(name, owner)
		}
	}

	r.e.SetTarget(three)
	r.run()

	require.NotZero(t, r.passes(0), "nothing is known about the ring yet")

	before := len(r.since(0))
	r.e.SetTarget(of(all, "a", "b"))
	r.eventually(func() bool {
		return slices.ContainsFunc(r.since(before), func(s string) bool { return strings.HasSuffix(s, "in (c)") })
	})
	require.Zero(t, r.passes(before), "only the objects of c should be listed")
	require.False(t, r.e.Report().Converged)

	r.settle()
	require.Equal(t, 1, r.passes(before))

	before = len(r.since(0))
	r.e.SetTarget(of(all, "a", "b", "d"))
	r.eventually(func() bool { return r.e.Report().Misplaced+r.e.Report().Draining > 0 })
	require.Equal(t, 1, r.passes(before), "all shards lose partitions to a shard that joins")
}

// target returns a target of a ring of ConfigMaps, and the resources that they control.
func target(ring string, controlled ...string) *Target {
	return &Target{
		View:     viewOf(ring, "a"),
		Set:      resourcesOf(controlled...),
		Leaving:  map[schema.GroupResource]bool{},
		Selector: labels.Everything(),
	}
}

// viewOf returns the view of a ring with the given available shards. The Leases have no namespaces, so live Leases are used
// instead.
func viewOf(ring string, shards ...string) *membership.View {
	leases := make([]*coordinationv1.Lease, len(shards))
	for i, name := range shards {
		leases[i] = &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{contract.LabelClusterRing: ring}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name},
		}
	}

	return membership.NewView(ring, leases, nil)
}
