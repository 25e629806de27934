package engine

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/internal/takeover"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/work"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// gate holds back the writes to some objects, and records the object of every request.
type gate struct {
	next http.RoundTripper

	mu     sync.Mutex
	closed map[string]chan struct{}
	sent   []string
	read   []string
}

func (g *gate) RoundTrip(req *http.Request) (*http.Response, error) {
	of := objectIn(req.URL.Path)

	if req.Method != http.MethodPatch {
		g.mu.Lock()
		g.read = append(g.read, of)
		g.mu.Unlock()

		return g.next.RoundTrip(req)
	}

	g.mu.Lock()
	g.sent = append(g.sent, of)
	closed := g.closed[of]
	g.mu.Unlock()

	if closed != nil {
		select {
		case <-closed:
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}

	return g.next.RoundTrip(req)
}

// objectIn returns "resource/name".
func objectIn(path string) string {
	parts := strings.Split(path, "/")

	return strings.Join(parts[len(parts)-2:], "/")
}

// hold holds back writes to an object until it is released.
func (g *gate) hold(of string) (letGo func()) {
	g.mu.Lock()
	defer g.mu.Unlock()

	closed := make(chan struct{})
	g.closed[of] = closed

	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()

		delete(g.closed, of)
		close(closed)
	}
}

// has reports whether a write to an object was sent.
func (g *gate) has(of string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()

	return slices.Contains(g.sent, of)
}

// asked reports whether an object was read.
func (g *gate) asked(of string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()

	return slices.Contains(g.read, of)
}

// ringOfTwo is an engine at a real API server behind a gate, for a ring of ConfigMaps and their Secrets with the shards
// a and b.
type ringOfTwo struct {
	*testing.T
	*gate
	client client.Client
	ring   string
	ns     string
	e      *Engine
	target *Target
	stop   func()
}

func newRingOfTwo(t *testing.T) *ringOfTwo {
	t.Helper()

	plane := localplane.Shared(t)
	w := &ringOfTwo{T: t, gate: &gate{closed: map[string]chan struct{}{}}, client: plane.Client, ns: plane.Namespace(t)}
	w.ring = "follow-" + w.ns

	cfg := rest.CopyConfig(plane.Config)
	cfg.QPS = -1
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		w.next = rt
		return w.gate
	})

	httpClient, err := rest.HTTPClientFor(cfg)
	require.NoError(t, err)
	api, err := feed.Connect(cfg, httpClient, feed.Bounds{PerSecond: 10000, AtOnce: 64})
	require.NoError(t, err)

	w.e = New(Config{
		Ring: w.ring, Objects: feed.NewClient(api, contract.LabelKeysOf(w.ring, "")), Guard: takeover.New(w.ring,
			plane.Client, clock.RealClock{}),
		Namespaces: allOf(w.ns),
		Limits:     Limits{Workers: 4, Total: 10, PerShard: 10, DrainTimeout: time.Minute, Settle: time.Millisecond},
		Clock:      clock.RealClock{},
		Changed:    func() {},
		Late:       func(feed.ID, string, time.Duration) {},
	})
	w.target = w.targetOf("a", "b")

	return w
}

func (w *ringOfTwo) targetOf(shards ...string) *Target {
	return &Target{
		View:     viewOf(w.ring, shards...),
		Set:      resourcesOf("secrets"),
		Leaving:  map[schema.GroupResource]bool{},
		Selector: labels.Everything(),
	}
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
func (w *ringOfTwo) run() {
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

// nameAtB returns a name that belongs to b.
func (w *ringOfTwo) nameAtB(prefix string) string {
	for name := prefix; ; name += "x" {
		if at, _ := w.target.View.Owner(key.Key{Kind: "ConfigMap", Namespace: w.ns, Name: name}); at == "b" {
			return name
		}
	}
}

func (w *ringOfTwo) at(shard string) map[string]string {
	if shard == "" {
		return nil
	}

	return map[string]string{contract.ShardLabel(w.ring): shard}
}

func (w *ringOfTwo) owner(name, shard string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name, Labels: w.at(shard)}}
	require.NoError(w, w.client.Create(w.Context(), cm))

	return cm
}

func (w *ringOfTwo) child(of *corev1.ConfigMap, name, shard string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name, Labels: w.at(shard)}}
	require.NoError(w, controllerutil.SetControllerReference(of, s, w.client.Scheme()))
	require.NoError(w, w.client.Create(w.Context(), s))

	return s
}

func (w *ringOfTwo) becomes(obj client.Object, shard string, drain bool) {
	w.Helper()
	w.await(func() bool {
		require.NoError(w, w.client.Get(w.Context(), client.ObjectKeyFromObject(obj), obj))

		_, draining := obj.GetLabels()[contract.DrainLabel(w.ring)]

		return obj.GetLabels()[contract.ShardLabel(w.ring)] == shard && draining == drain
	}, "%s should be at %q, drained: %t; it has %v", obj.GetName(), shard, drain, obj.GetLabels())
}

func (w *ringOfTwo) await(condition func() bool, message string, args ...any) {
	w.Helper()
	require.Eventually(w, condition, 30*time.Second, 5*time.Millisecond, append([]any{message}, args...)...)
}

// putOff reports whether objects wait: for the turn of others to end, or for an owner to reach its place.
func (w *ringOfTwo) putOff(of *corev1.ConfigMap) bool {
	w.e.mu.Lock()
	defer w.e.mu.Unlock()

	id := feed.ID{GVR: corev1.SchemeGroupVersion.WithResource("configmaps"), Namespace: w.ns, Name: of.Name}

	return w.e.table.Waits(work.TurnOf(of.UID)) || w.e.table.Waits(work.OwnerOf(id))
}

// A child moves to the shard at which its owner was seen. If the owner could move on before the child's label is
// written, the child would reach a shard that has just stopped to work on this owner.
func TestOwnerStaysWhileItsChildIsAssigned(t *testing.T) {
	w := newRingOfTwo(t)
	owner := w.owner(w.nameAtB("owner"), "a")
	other := w.owner(w.nameAtB("other"), "a")
	first, second := w.child(owner, "first", ""), w.child(owner, "second", "")
	letFirstGo, letSecondGo := w.hold("secrets/first"), w.hold("secrets/second")

	w.e.SetTarget(w.targetOf("a"))
	w.run()
	w.await(func() bool { return w.has("secrets/first") && w.has("secrets/second") },
		"children of one owner should not wait for each other")

	w.e.SetTarget(w.target) // b has joined
	w.await(func() bool { return w.has("configmaps/"+owner.Name) || w.putOff(owner) }, "the owner should be processed")
	require.False(t, w.has("configmaps/"+owner.Name),
		"the owner is drained while its children are being assigned to its old shard")
	w.becomes(other, "a", true) // other objects do not wait

	letFirstGo()
	w.becomes(first, "a", false)
	require.False(t, w.has("configmaps/"+owner.Name), "the write of one child is still in progress")
	letSecondGo()
	w.becomes(second, "a", false)
	w.becomes(owner, "a", true)
}

// A read of an owner whose labels are being written may be out of date a moment later.
func TestChildIsDecidedAfterItsOwner(t *testing.T) {
	w := newRingOfTwo(t)
	owner := w.owner(w.nameAtB("owner"), "")
	letGo := w.hold("configmaps/" + owner.Name)

	w.e.SetTarget(w.target)
	w.run()
	w.await(func() bool { return w.has("configmaps/" + owner.Name) }, "the owner should be assigned")

	child := w.child(owner, "child", "b")
	stray := w.child(owner, "stray", "")
	looked := func() bool { return w.putOff(owner) || w.asked("configmaps/"+owner.Name) }
	w.await(looked, "the child without a shard should be processed")
	require.True(t, w.putOff(owner), "the owner is read while it is being written")

	letGo()
	w.becomes(owner, "b", false)
	w.becomes(stray, "b", false)
	w.becomes(child, "b", false)
}

// A stop does not wait for writes, or for objects that were deferred.
func TestStopsAmidAWrite(t *testing.T) {
	w := newRingOfTwo(t)
	owner := w.owner(w.nameAtB("owner"), "")
	w.hold("configmaps/" + owner.Name)
	w.e.SetTarget(w.target)
	w.run()
	w.await(func() bool { return w.has("configmaps/" + owner.Name) }, "the owner should be written")
	w.stop()
}
