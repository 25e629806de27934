package shard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/internal/testenv"
)

const (
	patience = 45 * time.Second
	interval = 20 * time.Millisecond
)

func TestMain(m *testing.M) { testenv.VerifyMain(m) }

// fixture is one test's ring, namespace and administrator.
type fixture struct {
	*testing.T
	admin     client.Client
	config    *rest.Config
	namespace string
	ring      string
	keys      contract.LabelKeys
	cache     cache.Options // of managers
	client    client.CacheOptions
}

// newFixture uses the namespace's name for the ring, so that no test sees objects of another.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	namespace := testenv.Namespace(t)

	return &fixture{T: t, admin: testenv.Client(t), config: testenv.Config(t), namespace: namespace, ring: namespace,
		keys: contract.LabelKeysOf(namespace, "")}
}

// adminWithWatch returns a client for interceptors.
func (f *fixture) adminWithWatch() client.WithWatch {
	f.Helper()
	admin, err := client.NewWithWatch(f.config, client.Options{})
	require.NoError(f, err)

	return admin
}

// named returns the options of a shard with a Lease that a slow machine can keep.
func (f *fixture) named(name string) Options {
	return Options{
		Ring: f.ring, Name: name, Namespace: f.namespace,
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 200 * time.Millisecond,
		HoldOff: minHoldOff, Kinds: Kinds{Main(&corev1.ConfigMap{})},
	}
}

// slotOptions are the options of a Pod in a ring with this many slots.
func (f *fixture) slotOptions(pod string, slots int) Options { return f.slotted(pod, Count(slots)) }

func (f *fixture) slotted(pod string, slots Slots) Options {
	o := f.named("")
	o.Pod, o.Slots = pod, slots

	return o
}

// briefly returns the options with a Lease of three seconds, and a deadline of two, for tests that wait until they have
// passed.
func briefly(o Options) Options {
	o.LeaseDuration, o.RenewDeadline = 3*time.Second, 2*time.Second
	return o
}

func (f *fixture) shard(name string) *Shard { return f.shardOf(f.named(name)) }

func (f *fixture) brief() *Shard { return f.shardOf(briefly(f.named("shard-0"))) }

func (f *fixture) shardOf(o Options) *Shard {
	f.Helper()

	s, err := New(o)
	require.NoError(f, err)
	f.Cleanup(func() { s.term.close() })

	return s
}

// options are those of a manager that several may run in one process.
func (f *fixture) options() manager.Options {
	return manager.Options{
		Cache: f.cache, Client: client.Options{Cache: new(f.client)}, Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	}
}

// manager returns a manager whose controllers are sharded.
func (f *fixture) manager(o Options) *Manager {
	f.Helper()
	mgr, err := NewManager(f.config, f.options(), o)
	require.NoError(f, err)

	return mgr
}

// process is what runs until the test ends.
type process struct {
	f      *fixture
	mgr    manager.Manager
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// start runs a manager as the shard until the test ends. By default the shard's kinds are ConfigMap and Secret.
func (f *fixture) start(s *Shard, setup func(ctrl.Manager), kinds ...client.Object) *process {
	f.Helper()

	if len(kinds) == 0 {
		kinds = []client.Object{&corev1.ConfigMap{}, &corev1.Secret{}}
	}

	s.options.Kinds = Kinds{Main(kinds[0])}
	for _, kind := range kinds[1:] {
		s.options.Kinds = append(s.options.Kinds, Controlled(kind))
	}

	options := f.options()
	options.Controller.MaxConcurrentReconciles = 2
	mgr, err := newManager(s, f.config, options)
	require.NoError(f, err)
	setup(mgr)

	p := f.launch(mgr.Start)
	p.mgr = mgr

	return p
}

// launch calls the function in the background.
func (f *fixture) launch(run func(context.Context) error) *process {
	f.Helper()

	ctx, cancel := context.WithCancel(context.Background())
	p := &process{f: f, cancel: cancel, done: make(chan struct{})}

	go func() {
		defer close(p.done)

		p.err = run(ctx)
	}()
	f.Cleanup(func() { _ = p.stop() })

	return p
}

// stop asks the process to stop, waits, and returns its error.
func (p *process) stop() error {
	p.cancel()
	p.wait()

	return p.err
}

func (p *process) wait() {
	p.f.Helper()
	receive(p.f, p.done, "it stops")
}

// controls adds a controller for the kind that runs the function as its reconciler. It returns how many reconciles have
// ended, including the wrapper's part and except those during the hold-off.
func (f *fixture) controls(mgr ctrl.Manager, s *Shard, obj client.Object, fn reconcile.Func) *atomic.Int64 {
	f.Helper()

	c := &counting{inner: s.Reconciler(mgr.GetClient(), obj, fn), shard: s}
	require.NoError(f, ctrl.NewControllerManagedBy(mgr).Named("test").For(obj, forOptions(obj)).Complete(c))

	return &c.ended
}

// handmade is what a test puts around a reconciler that it has wrapped by hand.
type handmade struct {
	reconcile.Func
	shard *Shard
}

func (h handmade) ofShard() *Shard { return h.shard }

// counting counts the reconciles of a wrapped reconciler that have ended.
type counting struct {
	inner reconcile.Reconciler
	shard *Shard
	ended atomic.Int64
}

func (c *counting) ofShard() *Shard { return c.shard }

func (c *counting) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if c.shard.term.held() == nil {
		defer c.ended.Add(1)
	}

	return c.inner.Reconcile(ctx, req)
}

// configMap creates a ConfigMap that is assigned to the shard; it is unassigned if shard is empty.
func (f *fixture) configMap(s *Shard, name string) *corev1.ConfigMap {
	f.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: f.meta(s, name)}
	require.NoError(f, f.admin.Create(f.Context(), cm))

	return cm
}

// configMapOf is configMap for the name of a shard.
func (f *fixture) configMapOf(shard, name string) *corev1.ConfigMap {
	f.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: f.meta(nil, name)}
	cm.Labels = map[string]string{f.keys.Shard: shard}
	require.NoError(f, f.admin.Create(f.Context(), cm))

	return cm
}

// secretOf creates a Secret that the owner controls, and assigns it to the shard.
func (f *fixture) secretOf(s *Shard, owner client.Object, name string) *corev1.Secret {
	f.Helper()
	secret := &corev1.Secret{ObjectMeta: f.meta(s, name)}
	require.NoError(f, controllerutil.SetControllerReference(owner, secret, scheme.Scheme))
	require.NoError(f, f.admin.Create(f.Context(), secret))

	return secret
}

// meta returns metadata with this name; if the name is empty, the API server generates one.
func (f *fixture) meta(s *Shard, name string) metav1.ObjectMeta {
	meta := metav1.ObjectMeta{Namespace: f.namespace, Name: name, GenerateName: "object-"}
	if s != nil {
		meta.Labels = map[string]string{s.shardKey: s.Name()}
	}

	return meta
}

// label sets labels of the object; an empty value removes one.
func (f *fixture) label(obj client.Object, keysAndValues ...string) {
	f.Helper()

	labels := map[string]any{}

	for i := 0; i < len(keysAndValues); i += 2 {
		if labels[keysAndValues[i]] = keysAndValues[i+1]; keysAndValues[i+1] == "" {
			labels[keysAndValues[i]] = nil
		}
	}

	f.merge(obj, map[string]any{"labels": labels})
}

// merge patches the metadata of the object; nil removes a field.
func (f *fixture) merge(obj client.Object, metadata map[string]any) {
	f.Helper()

	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	require.NoError(f, err)
	require.NoError(f, f.admin.Patch(f.Context(), obj, client.RawPatch(types.MergePatchType, patch)))
}

// released waits until the object carries neither the shard nor the drain label.
func (f *fixture) released(obj client.Object) {
	f.Helper()
	f.eventually("the labels are removed", func() bool {
		f.refresh(obj)
		labels := obj.GetLabels()
		_, drain := labels[f.keys.Drain]

		return labels[f.keys.Shard] == "" && !drain
	})
}

func (f *fixture) refresh(obj client.Object) {
	f.Helper()
	require.NoError(f, f.admin.Get(f.Context(), client.ObjectKeyFromObject(obj), obj))
}

// leaseOf returns the Lease, or an empty one if it does not exist.
func (f *fixture) leaseOf(name string) *coordinationv1.Lease {
	f.Helper()

	return testenv.Lease(f, f.admin, client.ObjectKey{Namespace: f.namespace, Name: name})
}

func (f *fixture) lease(s *Shard) *coordinationv1.Lease { return f.leaseOf(s.Name()) }

func holder(lease *coordinationv1.Lease) string { return ptr.Deref(lease.Spec.HolderIdentity, "") }

func (f *fixture) held(s *Shard) {
	f.Helper()
	f.eventually("the Lease is held", func() bool { return holder(f.lease(s)) == s.Name() })
}

// eventually waits until the condition holds. It calls the condition on the goroutine of the test, so the condition may
// fail the test.
func (f *fixture) eventually(what string, condition func() bool) {
	f.Helper()
	err := wait.PollUntilContextTimeout(f.Context(), interval, patience, true, func(context.Context) (bool, error) {
		return condition(), nil
	})
	require.NoError(f, err, what)
}

// receive waits for a value.
func receive[T any](f *fixture, from <-chan T, what string) T {
	f.Helper()

	return testenv.Receive(f, patience, from, what)
}

// nothing is a reconciler that does nothing.
func nothing(context.Context, reconcile.Request) (reconcile.Result, error) {
	return reconcile.Result{}, nil
}

// reports starts a manager with a controller that reports the ConfigMaps that it reconciles.
func (f *fixture) reports(s *Shard) (p *process, worked names) {
	f.Helper()

	worked = newNames()
	p = f.start(s, func(mgr ctrl.Manager) { f.controls(mgr, s, &corev1.ConfigMap{}, worked.reconcile) },
		&corev1.ConfigMap{})

	return p, worked
}

// blocker is a reconciler that reports each call and does not return until it is released, regardless of its context.
type blocker struct {
	entered names
	proceed chan struct{}
}

func newBlocker() *blocker {
	return &blocker{entered: newNames(), proceed: make(chan struct{})}
}

func (b *blocker) reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	defer func() { <-b.proceed }()

	return b.entered.reconcile(ctx, req)
}

// names is a reconciler that reports the name of each request.
type names chan string

func newNames() names { return make(names, 100) }

func (n names) reconcile(_ context.Context, req reconcile.Request) (reconcile.Result, error) {
	n <- req.Name

	return reconcile.Result{}, nil
}

// forms are the forms in which a program reads and watches objects.
var forms = []string{"typed", "unstructured", "metadata"}

// emptyOf returns an empty object and an empty list of a kind of the core API in a form.
func emptyOf(form, kind string) (client.Object, client.ObjectList) {
	gvk := corev1.SchemeGroupVersion.WithKind(kind)

	var (
		obj  client.Object
		list client.ObjectList
	)

	switch form {
	case "typed":
		o, _ := scheme.Scheme.New(gvk)
		l, _ := scheme.Scheme.New(gvk.GroupVersion().WithKind(kind + "List"))

		return o.(client.Object), l.(client.ObjectList) //nolint:forcetypeassert // all kinds of this API are
	case "unstructured":
		obj, list = &unstructured.Unstructured{}, &unstructured.UnstructuredList{}
	default:
		obj, list = &metav1.PartialObjectMetadata{}, &metav1.PartialObjectMetadataList{}
	}

	obj.GetObjectKind().SetGroupVersionKind(gvk)
	list.GetObjectKind().SetGroupVersionKind(gvk.GroupVersion().WithKind(kind + "List"))

	return obj, list
}

// resourceOf returns a namespaced resource of the core API.
func resourceOf(kind string, items toolscache.Store, live metadata.Interface) Resource {
	return Resource{
		Kind: corev1.SchemeGroupVersion.WithKind(kind), Namespaced: true, Store: items, Client: live,
		Resource: corev1.SchemeGroupVersion.WithResource(strings.ToLower(kind) + "s"),
	}
}

// wire is what the requests of the fixture's config go through. It records them.
type wire struct {
	mu   sync.Mutex
	sent []string
	trip trip
}

// trip sends a request, or does something else.
type trip func(req *http.Request, next http.RoundTripper) (*http.Response, error)

var errDown = errors.New("the network is down")

// down sends no request, and lost loses the answer.
func down(*http.Request, http.RoundTripper) (*http.Response, error) { return nil, errDown }

func lost(req *http.Request, next http.RoundTripper) (*http.Response, error) {
	resp, err := next.RoundTrip(req)
	if err == nil {
		_ = resp.Body.Close()
	}

	return nil, errDown
}

func (f *fixture) wire() *wire {
	w := &wire{}
	w.via(nil)
	f.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) { return w.send(req, next) })
	})

	return w
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }

// via sets what requests go through; nil: nothing.
func (w *wire) via(t trip) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if w.trip = t; t == nil {
		w.trip = func(req *http.Request, next http.RoundTripper) (*http.Response, error) { return next.RoundTrip(req) }
	}
}

func (w *wire) send(req *http.Request, next http.RoundTripper) (*http.Response, error) {
	verb, form := strings.ToLower(req.Method), "object"
	if req.URL.Query().Has("watch") {
		verb = "watch"
	}

	if verb == "watch" && req.URL.Query().Get("allowWatchBookmarks") != "true" {
		verb = "blind-watch"
	}

	if strings.Contains(req.Header.Get("Accept"), "PartialObjectMetadata") {
		form = "metadata"
	}

	is := verb + " " + form + " " + path.Base(req.URL.Path)

	resp, err := w.record(is)(req, next)
	if err == nil {
		w.record(fmt.Sprint(resp.StatusCode, " ", is))
	}

	return resp, err
}

func (w *wire) record(is string) trip {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.sent = append(w.sent, is)

	return w.trip
}

// count returns how many requests match the pattern: verb, form, and the end of the path, such as "watch metadata
// configmaps" or "get * a". Those that were answered count as well with the code of the answer before the verb.
func (w *wire) count(pattern string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()

	for _, is := range w.sent {
		if matches, _ := path.Match(pattern, is); matches {
			n++
		}
	}

	return n
}
