package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/takeover"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
)

// asked is a request of an engine to the API server.
type asked struct {
	verb     string // LIST, WATCH, GET or PATCH
	resource string
	name     string // empty for LIST and WATCH
	selector string
	ctx      context.Context //nolint:containedctx // the context of the request
}

func (a asked) of(verb, resource string) bool { return a.verb == verb && a.resource == resource }

// askedBy returns the request for the core API that an HTTP request represents.
func askedBy(req *http.Request) asked {
	query := req.URL.Query()
	a := asked{verb: req.Method, selector: query.Get("labelSelector"), ctx: req.Context()}
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

// meddler is a connection to the API server that the test can interfere with. It counts requests.
type meddler struct {
	next http.RoundTripper

	mu      sync.Mutex
	answer  func(asked) (*http.Response, error)
	counts  map[string]int // by verb and resource
	watches []io.Closer
}

func (m *meddler) RoundTrip(req *http.Request) (*http.Response, error) {
	a := askedBy(req)

	m.mu.Lock()
	m.counts[a.verb+" "+a.resource]++
	answer := m.answer
	m.mu.Unlock()

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
func (m *meddler) meddle(answer func(asked) (*http.Response, error)) {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.answer = answer
}

// cut ends all watches.
func (m *meddler) cut() {
	m.mu.Lock()
	all := m.watches
	m.watches = nil
	m.mu.Unlock()

	for _, body := range all {
		_ = body.Close() // the connection stays open
	}
}

// times returns how often requests were sent, such as "LIST secrets".
func (m *meddler) times(what ...string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()

	for key, count := range m.counts {
		if slices.Contains(what, key) {
			n += count
		}
	}

	return n
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

// silent is the answer to a watch that never delivers an event.
func silent(r asked) *http.Response {
	body, end := io.Pipe()
	context.AfterFunc(r.ctx, func() { _ = end.CloseWithError(r.ctx.Err()) })

	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}
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

// meddled is an engine for ConfigMaps and their Secrets at the shards a and b. The test can interfere with its
// requests.
type meddled struct {
	*ringOfTwo
	*meddler
	leases *leaseReader
	fake   *testclock.FakeClock // nil if the real time is used
}

func newMeddled(t *testing.T, change ...func(*meddled, *Config)) *meddled {
	t.Helper()

	w := &meddled{ringOfTwo: newRingOfTwo(t)}
	w.meddler = &meddler{next: w.gate.next, counts: map[string]int{}}
	w.gate.next = w.meddler
	w.leases = &leaseReader{Reader: w.client}

	c := w.e.Config
	c.Limits.Total, c.Limits.PerShard, c.Limits.Workers = 1000, 1000, 8

	for _, f := range change {
		f(w, &c)
	}

	c.Guard = takeover.New(w.ring, w.leases, c.Clock)
	w.e = New(c)

	return w
}

// byHand makes time pass only when the test says so.
func byHand(w *meddled, c *Config) {
	w.fake = testclock.NewFakeClock(time.Unix(1_000_000_000, 0))
	c.Clock = w.fake
}

// goesBy lets some seconds pass. A second lasts as long as a few requests. goesBy does not wait for the effects.
func (w *meddled) goesBy(seconds int) {
	for range seconds {
		w.fake.Step(time.Second)

		for range 3 {
			_ = w.client.Get(w.Context(), client.ObjectKey{Name: w.ns}, &corev1.Namespace{}) // the result is irrelevant
		}
	}
}

// eventually waits for a condition while time passes.
func (w *meddled) eventually(condition func() bool, message string, args ...any) {
	w.Helper()
	w.await(func() bool {
		if w.fake != nil {
			w.fake.Step(100 * time.Millisecond)
		}

		return condition()
	}, message, args...)
}

func (w *meddled) converges() {
	w.Helper()
	w.eventually(func() bool { return w.e.Report().Converged }, "the ring should converge")
}

// placed reports whether an object is at a shard, and whether it is drained.
func (w *meddled) placed(obj client.Object, shard string, drain bool) bool {
	if w.client.Get(w.Context(), client.ObjectKeyFromObject(obj), obj) != nil {
		return false // the caller reports it
	}

	_, draining := obj.GetLabels()[contract.DrainLabel(w.ring)]

	return obj.GetLabels()[contract.ShardLabel(w.ring)] == shard && draining == drain
}

// comes waits until an object is at a shard, and drained or not.
func (w *meddled) comes(obj client.Object, shard string, drain bool) {
	w.Helper()
	w.eventually(func() bool { return w.placed(obj, shard, drain) }, "%s should be at %q, drained: %t",
		obj.GetName(), shard, drain)
}

// namesAt returns names that belong to a shard.
func (w *meddled) namesAt(t *Target, shard, prefix string, n int) []string {
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
func (w *meddled) owners(prefix, shard string, n int) []*corev1.ConfigMap {
	var all []*corev1.ConfigMap
	for _, name := range w.namesAt(w.target, "b", prefix, n) {
		all = append(all, w.owner(name, shard))
	}

	return all
}

// relabel writes labels as another client.
func (w *meddled) relabel(obj client.Object, labels map[string]any) {
	w.Helper()

	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	require.NoError(w, err)
	require.NoError(w, w.client.Patch(w.Context(), obj, client.RawPatch(types.MergePatchType, body)))
}

// acknowledge does what a shard does with a drained object.
func (w *meddled) acknowledge(obj client.Object) {
	w.Helper()
	w.relabel(obj, map[string]any{contract.ShardLabel(w.ring): nil, contract.DrainLabel(w.ring): nil})
}

// lease creates the Lease of a shard, held or not.
func (w *meddled) lease(name string, held bool) *leasetest.Shard {
	w.Helper()

	s := &leasetest.Shard{Client: w.client, Ring: w.ring, Namespace: w.ns, Name: name}
	require.NoError(w, s.Acquire(w.Context()))

	if !held {
		require.NoError(w, s.Release(w.Context()))
	}

	return s
}

// failure reports whether the engine reports a failure that contains the text.
func (w *meddled) failure(words string) bool {
	return slices.ContainsFunc(w.e.Report().Failures, func(f string) bool { return strings.Contains(f, words) })
}

// counter counts by name. The zero value is ready to use.
type counter struct {
	mu sync.Mutex
	by map[string]int
}

// up returns the new count.
func (c *counter) up(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.by == nil {
		c.by = map[string]int{}
	}

	c.by[name]++

	return c.by[name]
}

func (c *counter) least(names ...string) int {
	c.mu.Lock()
	defer c.mu.Unlock()

	if len(names) == 0 {
		names = slices.Collect(maps.Keys(c.by))
	}

	least := c.by[names[0]]
	for _, name := range names {
		least = min(least, c.by[name])
	}

	return least
}
