package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/internal/takeover"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/work"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// asked is a request of an engine to the API server.
type asked struct {
	verb     string // LIST, WATCH, GET or PATCH
	path     string
	resource string
	name     string // empty for LIST and WATCH
	selector string
	fields   string
	ctx      context.Context //nolint:containedctx // the context of the request
}

func (a asked) String() string {
	return strings.TrimSpace(strings.Join([]string{a.verb, a.path, a.selector, a.fields}, " "))
}

func (a asked) of(verb, resource string) bool { return a.verb == verb && a.resource == resource }

// askedBy returns the request for the core API that an HTTP request represents.
func askedBy(req *http.Request) asked {
	query := req.URL.Query()
	a := asked{verb: req.Method, path: req.URL.Path, selector: query.Get("labelSelector"),
		fields: query.Get("fieldSelector"), ctx: req.Context()}
	parts := strings.Split(strings.TrimPrefix(req.URL.Path, "/api/v1/"), "/")

	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}

	if a.resource = parts[0]; len(parts) > 1 {
		a.name = parts[1]
	}

	switch {
	case query.Get("sendInitialEvents") == "true", a.verb == http.MethodGet && a.name == "" && !query.Has("watch"):
		a.verb = "LIST"
	case query.Has("watch"):
		a.verb = "WATCH"
	}

	return a
}

// wire is a connection to the API server that records requests, and that the test can interfere with.
type wire struct {
	next http.RoundTripper

	mu      sync.Mutex
	answer  func(asked) (*http.Response, error)
	closed  map[string]chan struct{}
	seen    []asked
	watches []io.Closer
}

func (m *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	a := askedBy(req)

	m.mu.Lock()
	m.seen = append(m.seen, a)
	answer, closed := m.answer, m.closed[a.resource+"/"+a.name]
	m.mu.Unlock()

	if closed != nil && a.verb == http.MethodPatch {
		select {
		case <-closed:
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}

	if answer != nil {
		if res, err := answer(a); res != nil || err != nil {
			return res, err
		}
	}

	res, err := m.next.RoundTrip(req)
	if err == nil && a.verb == "WATCH" {
		m.mu.Lock()
		m.watches = append(m.watches, res.Body)
		m.mu.Unlock()
	}

	return res, err
}

// meddle sets the function that answers requests. If it returns nothing, the API server answers. The function may
// block; nil answers nothing.
func (m *wire) meddle(answer func(asked) (*http.Response, error)) {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.answer = answer
}

// hold holds back writes to an object, such as "secrets/one", until it is released.
func (m *wire) hold(of string) (letGo func()) {
	m.mu.Lock()
	defer m.mu.Unlock()

	closed := make(chan struct{})
	m.closed[of] = closed

	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()

		delete(m.closed, of)
		close(closed)
	}
}

// since returns the requests after the first n.
func (m *wire) since(n int) []asked {
	m.mu.Lock()
	defer m.mu.Unlock()

	return slices.Clone(m.seen[n:])
}

// has reports whether a write to an object was sent, and asked whether the object was read.
func (m *wire) has(of string) bool { return m.times(http.MethodPatch+" "+of) > 0 }

func (m *wire) asked(of string) bool { return m.times(http.MethodGet+" "+of) > 0 }

// cut ends all watches.
func (m *wire) cut() {
	m.mu.Lock()
	all := m.watches
	m.watches = nil
	m.mu.Unlock()

	for _, body := range all {
		_ = body.Close() // the connection stays open
	}
}

// times returns how often requests were sent, such as "LIST secrets" or "GET secrets/one".
func (m *wire) times(what ...string) (n int) {
	for _, a := range m.since(0) {
		if slices.Contains(what, a.verb+" "+a.resource) || slices.Contains(what, a.verb+" "+a.resource+"/"+a.name) {
			n++
		}
	}

	return n
}

// knows reports whether an object is an obligation.
func (e *Engine) knows(id feed.ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()

	_, known := e.table.Has(id)

	return known
}

// listing records that a source has objects that it has not reported yet.
func (e *Engine) listing(id sourceID, first bool) {
	e.update(func(time.Time) { e.unlisted[id] = first })
}

// report records the outcome of a job.
func (e *Engine) report(id feed.ID, out work.Outcome) {
	e.update(func(now time.Time) { e.table.Report(now, id, out) })
}

// refused is the answer of an API server that refuses a request.
func refused(code int, reason metav1.StatusReason) (*http.Response, error) {
	body, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: "refused by the test", //nolint:gosec // small
	})

	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(body)),
	}, err
}

func refusedAsInternal() (*http.Response, error) {
	return refused(http.StatusInternalServerError, metav1.StatusReasonInternalError)
}

// blind ends all watches. Those that are like some never deliver an event from now on.
func (m *wire) blind(like func(asked) bool) {
	m.meddle(func(r asked) (*http.Response, error) {
		if !like(r) {
			return nil, nil
		}

		body, end := io.Pipe()
		context.AfterFunc(r.ctx, func() { _ = end.CloseWithError(r.ctx.Err()) })

		return &http.Response{
			StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: body,
		}, nil
	})
	m.cut()
}

// leaseReader counts lists of Leases, and can refuse them.
type leaseReader struct {
	client.Reader

	mu  sync.Mutex
	n   int
	err error
}

// refuse makes every list fail with the error; nil ends that.
func (r *leaseReader) refuse(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.err = err
}

func (r *leaseReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	r.mu.Lock()
	r.n++
	err := r.err
	r.mu.Unlock()

	if err != nil {
		return err
	}

	return r.Reader.List(ctx, list, opts...)
}

func (r *leaseReader) lists() int {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.n
}

// world is an engine at a real API server, for a ring of ConfigMaps and their Secrets with the shards a and b. The test
// can interfere with its requests.
type world struct {
	*testing.T
	*wire
	client client.Client
	leases *leaseReader
	fake   *testclock.FakeClock // nil if the real time is used
	ring   string
	ns     string
	e      *Engine
	target *Target
	stop   func()
}

func newWorld(t *testing.T, change ...func(*world, *Config)) *world {
	t.Helper()

	plane := localplane.Shared(t)
	w := &world{T: t, wire: &wire{closed: map[string]chan struct{}{}}, client: plane.Client,
		leases: &leaseReader{Reader: plane.Client}, ns: plane.Namespace(t)}
	w.ring = "engine-" + w.ns

	cfg := rest.CopyConfig(plane.Config)
	cfg.QPS = -1
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		w.next = rt
		return w.wire
	})

	httpClient, err := rest.HTTPClientFor(cfg)
	require.NoError(t, err)
	api, err := feed.Connect(cfg, httpClient, feed.Bounds{PerSecond: 10000, AtOnce: 64})
	require.NoError(t, err)

	c := Config{
		Ring: w.ring, Objects: feed.NewClient(api, contract.LabelKeysOf(w.ring, "")), Namespaces: these{w.ns},
		Limits: Limits{Workers: 8, Total: 1000, PerShard: 1000, DrainTimeout: time.Minute, Settle: time.Millisecond},
		Clock:  clock.RealClock{}, Changed: func() {}, Late: func(feed.ID, string, time.Duration) {},
	}

	for _, f := range change {
		f(w, &c)
	}

	c.Guard = takeover.New(w.ring, w.leases, c.Clock)
	w.e, w.target = New(c), w.targetOf("a", "b")

	return w
}

// atRest is an engine with a settle period. Time passes only when the test says so.
func atRest(w *world, c *Config) {
	byHand(w, c)

	c.Limits.Settle = time.Second
}

// byHand makes time pass only when the test says so.
func byHand(w *world, c *Config) {
	w.fake = testclock.NewFakeClock(time.Unix(1_000_000_000, 0))
	c.Clock = w.fake
}

// goesBy lets some seconds pass. A second lasts as long as a few requests. goesBy does not wait for the effects.
func (w *world) goesBy(seconds int) {
	for range seconds {
		w.fake.Step(time.Second)

		for range 3 {
			_ = w.client.Get(w.Context(), client.ObjectKey{Name: w.ns}, &corev1.Namespace{}) // the result is irrelevant
		}
	}
}

// eventually waits for a condition while time passes.
func (w *world) eventually(condition func() bool, message ...any) {
	w.Helper()
	w.await(func() bool {
		if w.fake != nil {
			w.fake.Step(100 * time.Millisecond)
		}

		return condition()
	}, message...)
}

func (w *world) converges() {
	w.Helper()
	w.eventually(func() bool { return w.e.Report().Converged }, "the ring should converge")
}

func (w *world) targetOf(shards ...string) *Target {
	return of(target(w.ring, "secrets"), shards...)
}

// resourcesOf returns ConfigMaps, and the resources that they control.
func resourcesOf(controlled ...string) *resources.Set {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"ConfigMap", "Secret", "ServiceAccount"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}

	r := v1alpha1.RingResource{Resource: "configmaps"}
	for _, name := range controlled {
		r.ControlledResources = append(r.ControlledResources, v1alpha1.ControlledResource{Resource: name})
	}

	return resources.Resolve(mapper, v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{r}})
}

// run runs the engine until the test ends or stop is called.
func (w *world) run() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})

	go func() {
		defer close(ended)
		w.e.Run(ctx)
	}()

	w.stop = func() {
		cancel()
		<-ended
	}
	w.Cleanup(w.stop)
}

func (w *world) at(shard string) map[string]string {
	if shard == "" {
		return nil
	}

	return map[string]string{contract.ShardLabel(w.ring): shard}
}

func (w *world) owner(name, shard string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name, Labels: w.at(shard)}}
	require.NoError(w, w.client.Create(w.Context(), cm))

	return cm
}

func (w *world) child(of *corev1.ConfigMap, name, shard string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name, Labels: w.at(shard)}}
	require.NoError(w, controllerutil.SetControllerReference(of, s, w.client.Scheme()))
	require.NoError(w, w.client.Create(w.Context(), s))

	return s
}

// becomes waits until an object is at a shard, and drained or not. The time does not pass.
func (w *world) becomes(obj client.Object, shard string, drain bool) {
	w.Helper()
	w.await(func() bool { return w.placed(obj, shard, drain) }, "%s should be at %q, drained: %t",
		obj.GetName(), shard, drain)
}

func (w *world) await(condition func() bool, message ...any) {
	w.Helper()
	require.Eventually(w, condition, time.Minute, 5*time.Millisecond, message...)
}

// putOff reports whether objects wait: for the turn of others to end, or for an owner to reach its place.
func (w *world) putOff(of *corev1.ConfigMap) bool {
	w.e.mu.Lock()
	defer w.e.mu.Unlock()

	id := feed.ID{GVR: corev1.SchemeGroupVersion.WithResource("configmaps"), Namespace: w.ns, Name: of.Name}

	return w.e.table.Waits(work.TurnOf(of.UID)) || w.e.table.Waits(work.OwnerOf(id))
}

// placed reports whether an object is at a shard, and whether it is drained.
func (w *world) placed(obj client.Object, shard string, drain bool) bool {
	if w.client.Get(w.Context(), client.ObjectKeyFromObject(obj), obj) != nil {
		return false // the caller reports it
	}

	_, draining := obj.GetLabels()[contract.DrainLabel(w.ring)]

	return obj.GetLabels()[contract.ShardLabel(w.ring)] == shard && draining == drain
}

// comes waits until an object is at a shard, and drained or not.
func (w *world) comes(obj client.Object, shard string, drain bool) {
	w.Helper()
	w.eventually(func() bool { return w.placed(obj, shard, drain) }, "%s should be at %q, drained: %t",
		obj.GetName(), shard, drain)
}

// namesAt returns names that belong to a shard.
func (w *world) namesAt(t *Target, shard, prefix string, n int) []string {
	var names []string

	for i := 0; len(names) < n; i++ {
		name := fmt.Sprintf("%s-%d", prefix, i)
		if at, _ := t.View.Owner(key.Key{Kind: "ConfigMap", Namespace: w.ns, Name: name}); at == shard {
			names = append(names, name)
		}
	}

	return names
}

// owners creates ConfigMaps that belong to b, at a shard.
func (w *world) owners(prefix, shard string, n int) []*corev1.ConfigMap {
	var all []*corev1.ConfigMap
	for _, name := range w.namesAt(w.target, "b", prefix, n) {
		all = append(all, w.owner(name, shard))
	}

	return all
}

// relabel writes labels as another client.
func (w *world) relabel(obj client.Object, labels map[string]any) {
	w.Helper()

	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	require.NoError(w, err)
	require.NoError(w, w.client.Patch(w.Context(), obj, client.RawPatch(types.MergePatchType, body)))
}

// acknowledge does what a shard does with a drained object.
func (w *world) acknowledge(obj client.Object) {
	w.Helper()
	w.relabel(obj, map[string]any{contract.ShardLabel(w.ring): nil, contract.DrainLabel(w.ring): nil})
}

// lease creates the Lease of a shard, held or not.
func (w *world) lease(name string, held bool) *leasetest.Shard {
	w.Helper()

	s := &leasetest.Shard{Client: w.client, Ring: w.ring, Namespace: w.ns, Name: name}
	require.NoError(w, s.Acquire(w.Context()))

	if !held {
		require.NoError(w, s.Release(w.Context()))
	}

	return s
}

// failure reports whether the engine reports a failure that contains the text.
func (w *world) failure(words string) bool {
	return slices.ContainsFunc(w.e.Report().Failures, func(f string) bool { return strings.Contains(f, words) })
}

// these selects some namespaces.
type these []string

func (t these) Selects(_ context.Context, namespace string, _ labels.Selector) (bool, error) {
	return slices.Contains(t, namespace), nil
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

// viewOf returns the view of a ring with the given available shards. The Leases have no namespaces, so live Leases are
// used instead.
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
