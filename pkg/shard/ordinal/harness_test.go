package ordinal_test

import (
	"context"
	"errors"
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
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/internal/testenv"
	"github.com/clusterring/clusterring/pkg/shard/ordinal"
)

const (
	patience = 60 * time.Second
	interval = 10 * time.Millisecond
	setName  = "web"
	deleted  = "deleted" // the state of an object that does not exist

	forgetAfter = 10 * time.Minute
)

func TestMain(m *testing.M) { testenv.VerifyMain(m) }

// fixture is a StatefulSet, its namespace, and a record of who works on what.
type fixture struct {
	*testing.T
	admin     client.Client
	namespace string
	record    *record
	filter    predicate.Predicate // of the controllers
}

// newFixture creates a StatefulSet whose Pods the test plays.
func newFixture(t *testing.T, replicas int32) *fixture {
	t.Helper()

	f := &fixture{T: t, admin: testenv.Client(t), namespace: testenv.Namespace(t), record: newRecord(), filter: predicate.Funcs{}}
	labels := map[string]string{"app": setName}
	require.NoError(t, f.admin.Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: setName},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/c"}}},
			},
		},
	}))

	return f
}

// scale changes the number of replicas.
func (f *fixture) scale(replicas int) {
	f.Helper()
	f.patchSet(fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
}

func (f *fixture) patchSet(patch string) {
	f.Helper()

	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: setName}}
	require.NoError(f, f.admin.Patch(f.Context(), set, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// objects creates this many ConfigMaps.
func (f *fixture) objects(count int) []*corev1.ConfigMap {
	f.Helper()

	var all []*corev1.ConfigMap

	for i := range count {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: fmt.Sprintf("object-%d", i)}, Data: map[string]string{"touched": "0"}}
		require.NoError(f, f.admin.Create(f.Context(), cm))
		all = append(all, cm)
	}

	return all
}

// touch changes all objects.
func (f *fixture) touch(all []*corev1.ConfigMap, value string) {
	f.Helper()

	for _, cm := range all {
		patch := []byte(`{"data":{"touched":"` + value + `"}}`)
		require.NoError(f, f.admin.Patch(f.Context(), cm, client.RawPatch(types.MergePatchType, patch)))
	}
}

func (f *fixture) eventually(condition func() bool, what string, args ...any) {
	f.Helper()
	require.Eventuallyf(f, condition, patience, interval, what, args...)
}

// member is one process of the StatefulSet.
type member struct {
	f       *fixture
	process *ordinal.Process
	mgr     manager.Manager
	wire    *wire
	cancel  context.CancelFunc
	done    chan struct{}
	err     error
}

// start runs the process with this ordinal until the test ends.
func (f *fixture) start(number int) *member {
	f.Helper()

	m := &member{f: f, wire: newWire(), done: make(chan struct{})}
	kube := testenv.Config(f)
	kube.Wrap(m.wire.wrap)

	var err error

	m.process, err = ordinal.New(f.Context(), kube, ordinal.Options{PodName: pod(number), Namespace: f.namespace})
	require.NoError(f, err)
	m.mgr = f.manager(kube, m.process)

	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel

	go func() {
		defer close(m.done)

		m.err = m.mgr.Start(ctx)
	}()

	f.Cleanup(func() {
		m.wire.release()
		require.NoError(f, m.stop())
	})

	return m
}

// manager returns a manager with a controller of ConfigMaps that records its work.
func (f *fixture) manager(kube *rest.Config, p *ordinal.Process) manager.Manager {
	f.Helper()

	options := manager.Options{
		Cache:      cache.Options{DefaultNamespaces: map[string]cache.Config{f.namespace: {}}},
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true), MaxConcurrentReconciles: 4},
	}
	require.NoError(f, p.ConfigureManager(&options, &corev1.ConfigMap{}))
	mgr, err := manager.New(kube, options)
	require.NoError(f, err)
	require.NoError(f, mgr.Add(p))
	require.NoError(f, ctrl.NewControllerManagedBy(mgr).Named("test").WithEventFilter(f.filter).
		For(&corev1.ConfigMap{}, builder.WithPredicates(p.Predicate())).
		WatchesRawSource(p.Source(mgr.GetCache(), &corev1.ConfigMap{})).
		Complete(p.Reconciler(mgr.GetClient(), &corev1.ConfigMap{}, reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{}, f.record.work(ctx, p.Name(), mgr.GetClient(), req)
		}))))

	return mgr
}

// stop asks the process to stop, waits, and returns its error.
func (m *member) stop() error {
	m.f.Helper()
	m.cancel()

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()

	select {
	case <-m.done:
	case <-ctx.Done():
		require.Fail(m.f, "the process does not stop")
	}

	return m.err
}

// record is what all processes of a test have done.
type record struct {
	mu      sync.Mutex
	inside  map[string][]string // who works on an object now
	done    map[string]map[string]bool
	overlap []string
	pause   map[string]chan struct{} // workers of a process wait for it
	entered map[string]int           // reconciles of a process that began
	listed  map[string]int           // how many objects the last reconcile of an object has listed at its end
}

func newRecord() *record {
	return &record{
		inside: map[string][]string{}, done: map[string]map[string]bool{}, pause: map[string]chan struct{}{}, entered: map[string]int{},
		listed: map[string]int{},
	}
}

// work is what the reconcilers of a test do.
func (r *record) work(ctx context.Context, process string, c client.Client, req reconcile.Request) error {
	cm := &corev1.ConfigMap{}
	if err := c.Get(ctx, req.NamespacedName, cm); apierrors.IsNotFound(err) {
		cm.Data = map[string]string{"touched": deleted}
	} else if err != nil {
		return err
	}

	r.mu.Lock()
	if inside := r.inside[req.Name]; len(inside) > 0 {
		r.overlap = append(r.overlap, fmt.Sprintf("%s: %s and %v", req.Name, process, inside))
	}

	r.inside[req.Name] = append(r.inside[req.Name], process)
	r.entered[process]++
	pause := r.pause[process]
	r.mu.Unlock()

	if pause != nil {
		<-pause
	}

	// As after a conflict, it reads again.
	var list corev1.ConfigMapList

	err := errors.Join(client.IgnoreNotFound(c.Get(ctx, req.NamespacedName, cm)), c.List(ctx, &list, client.InNamespace(req.Namespace)))

	r.mu.Lock()
	defer r.mu.Unlock()

	r.listed[req.Name] = len(list.Items)

	r.inside[req.Name] = slices.DeleteFunc(r.inside[req.Name], func(p string) bool { return p == process })

	key := req.Name + "=" + cm.Data["touched"] // a stub would have no data
	if r.done[key] == nil {
		r.done[key] = map[string]bool{}
	}

	r.done[key][process] = true

	return err
}

// hold makes the workers of a process wait, however they are told to stop, until the function is called.
func (r *record) hold(process string) (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()

	pause := make(chan struct{})
	r.pause[process] = pause

	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()

		delete(r.pause, process)
		close(pause)
	})
}

// by returns who has worked on the object in this state.
func (r *record) by(object, touched string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()

	return slices.Sorted(maps.Keys(r.done[object+"="+touched]))
}

// listing returns how many objects the last reconcile of the object has listed.
func (r *record) listing(object string) int {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.listed[object]
}

func (r *record) begun(process string) int {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.entered[process]
}

func (r *record) overlaps() []string {
	r.mu.Lock()
	defer r.mu.Unlock()

	return slices.Clone(r.overlap)
}

// wire is the connection of a process to the API server, on which events of StatefulSets can be held up.
type wire struct {
	mu     sync.Mutex
	late   bool
	change chan struct{} // closed when late changes
}

func newWire() *wire { return &wire{change: make(chan struct{})} }

func (w *wire) set(late bool) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.late = late
	close(w.change)
	w.change = make(chan struct{})
}

// holdNumbers makes events of StatefulSets late until release.
func (w *wire) holdNumbers() { w.set(true) }

func (w *wire) release() { w.set(false) }

func (w *wire) wrap(inner http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		resp, err := inner.RoundTrip(req)
		if err == nil && req.URL.Query().Get("watch") != "" && strings.HasSuffix(req.URL.Path, "/statefulsets") {
			resp.Body = &lateBody{ReadCloser: resp.Body, wire: w, closed: make(chan struct{})}
		}

		return resp, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// lateBody is the body of a watch.
type lateBody struct {
	io.ReadCloser

	wire   *wire
	once   sync.Once
	closed chan struct{}
}

func (b *lateBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)

	for {
		b.wire.mu.Lock()
		held, change := b.wire.late, b.wire.change
		b.wire.mu.Unlock()

		if !held {
			return n, err
		}

		select {
		case <-change:
		case <-b.closed:
			return 0, io.EOF
		}
	}
}

func (b *lateBody) Close() error {
	b.once.Do(func() { close(b.closed) })

	return b.ReadCloser.Close()
}
