package shard

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// watches are the watches of ConfigMaps, whose events a test may hold back.
type watches struct {
	mu   sync.Mutex
	open chan struct{} // closed while events pass
}

// holdable lets a test hold back the watches of ConfigMaps of the fixture's config.
func (f *fixture) holdable() *watches { return f.holdableFor("configmaps") }

// holdableFor is holdable for another resource.
func (f *fixture) holdableFor(resource string) *watches {
	f.Helper()

	w := &watches{open: make(chan struct{})}
	close(w.open)
	f.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(req)
			if err == nil && req.URL.Query().Has("watch") && strings.HasSuffix(req.URL.Path, "/"+resource) {
				resp.Body = &heldBody{ReadCloser: resp.Body, watches: w, closed: make(chan struct{})}
			}

			return resp, err
		})
	})
	f.Cleanup(w.release)

	return w
}

// hold holds back every event from now on.
func (w *watches) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.open = make(chan struct{})
}

// release lets events pass, starting with those that were held back.
func (w *watches) release() {
	w.mu.Lock()
	defer w.mu.Unlock()

	select {
	case <-w.open:
	default:
		close(w.open)
	}
}

func (w *watches) gate() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.open
}

type heldBody struct {
	io.ReadCloser
	watches *watches
	once    sync.Once
	closed  chan struct{}
}

func (b *heldBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	select {
	case <-b.watches.gate():
	case <-b.closed:
	}

	return n, err
}

func (b *heldBody) Close() error {
	b.once.Do(func() { close(b.closed) })

	return b.ReadCloser.Close()
}

// visits record by name of the object how often a controller has looked at an object, and how often its reconciler then ran with
// the object present.
type visits struct {
	mu             sync.Mutex
	looked, worked map[string]int
}

func newVisits() *visits {
	return &visits{looked: map[string]int{}, worked: map[string]int{}}
}

func (v *visits) lookedAt(name string) int {
	v.mu.Lock()
	defer v.mu.Unlock()

	return v.looked[name]
}

func (v *visits) workedOn(name string) int {
	v.mu.Lock()
	defer v.mu.Unlock()

	return v.worked[name]
}

// sync is the inner reconciler; exists checks the cache.
func (v *visits) sync(name types.NamespacedName, exists func() bool) {
	if !exists() {
		return // NotFound: the object no longer belongs to this shard
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.worked[name.Name]++
}

// end counts a look, except during the hold-off.
func (v *visits) end(s *Shard, name types.NamespacedName) {
	if s.term.held() != nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.looked[name.Name]++
}

// staleProcess is a process of a shard that has filled its cache and waits for its Lease.
type staleProcess struct {
	*visits
	cached func(name string) bool // whether the cache contains the object
}

// startClientGo starts a process that uses only client-go.
func (f *fixture) startClientGo(s *Shard) *staleProcess {
	f.Helper()

	v := newVisits()
	clientset, err := kubernetes.NewForConfig(f.config)
	require.NoError(f, err)
	labels, err := metadata.NewForConfig(f.config)
	require.NoError(f, err)

	factory := informers.NewSharedInformerFactoryWithOptions(clientset, 0, informers.WithTweakListOptions(s.TweakListOptions))
	informer := factory.Core().V1().ConfigMaps().Informer()
	queue := f.queueOf(informer)
	exists := func(name types.NamespacedName) bool {
		_, exists, err := informer.GetStore().GetByKey(name.String())

		return err == nil && exists
	}
	handle := s.Handler(Resource{
		Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Resource: corev1.SchemeGroupVersion.WithResource("configmaps"),
		Namespaced: true, Store: informer.GetStore(), Client: labels,
	}, func(_ context.Context, name types.NamespacedName) error {
		v.sync(name, func() bool { return exists(name) })

		return nil
	})

	ctx, cancel := context.WithCancel(context.Background())
	factory.Start(ctx.Done())

	done := make(chan error, 1)
	go func() {
		done <- s.Run(ctx, f.config, func(ctx context.Context) error {
			return queue.run(ctx, func(ctx context.Context, name types.NamespacedName) (time.Duration, error) {
				defer v.end(s, name)

				return handle(ctx, name)
			})
		})
	}()
	f.Cleanup(func() {
		cancel()
		require.NoError(f, receive(f, done, "the controller stops"))
		factory.Shutdown()
	})

	return &staleProcess{visits: v, cached: func(name string) bool {
		return exists(types.NamespacedName{Namespace: f.namespace, Name: name})
	}}
}

// If a process waits for its Lease with a filled cache that is behind when the Lease is free, it has missed moves.
func TestNoWorkFromACacheOlderThanTheTerm(t *testing.T) {
	f := newFixture(t)
	s, other := f.shard("shard-0"), f.shard("shard-1")
	held := f.holdable()
	f.takenLease(s)
	f.configMap(s, "mine")
	moved, draining, gone := f.configMap(s, "moved"), f.configMap(s, "draining"), f.configMap(s, "gone")
	p := f.startClientGo(s)
	f.eventually("the cache is filled", func() bool {
		return p.cached("mine") && p.cached("moved") && p.cached("draining") && p.cached("gone")
	})

	held.hold()
	f.label(moved, s.shardKey, other.Name())
	f.label(draining, s.drainKey, "true")
	require.NoError(t, f.admin.Delete(t.Context(), gone))
	f.overwrite(s, func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = new("") })
	f.eventually("what has not changed is worked on, the rest is looked at", func() bool {
		return p.workedOn("mine") > 0 && p.lookedAt("moved") > 0 && p.lookedAt("draining") > 0 && p.lookedAt("gone") > 0
	})
	require.Zero(t, p.workedOn("moved"), "another shard's")
	require.Zero(t, p.workedOn("draining"), "to be given up")
	require.Zero(t, p.workedOn("gone"), "deleted")
	f.refresh(draining)
	require.True(t, s.draining(draining), "acknowledged only when it is seen")

	held.release()
	f.released(s, draining)
	f.label(moved, s.shardKey, s.Name())
	f.eventually("the object is back", func() bool { return p.workedOn("moved") > 0 })
	require.Zero(t, p.workedOn("draining"))
	require.Zero(t, p.workedOn("gone"))
}

// While a Lease does not exist, the shard may count as lost.
func TestNoWorkFromACacheOlderThanALeaseThatWasMadeAnew(t *testing.T) {
	f := newFixture(t)
	s, other := f.shard("shard-0"), f.shard("shard-1")
	held := f.holdable()
	cm := f.configMap(s, "a")
	worked := make(chan reconcile.Request, 100)

	var again reconcile.Reconciler
	f.start(s, func(mgr ctrl.Manager) {
		inner := reconcile.Func(func(_ context.Context, req reconcile.Request) (reconcile.Result, error) {
			worked <- req

			return reconcile.Result{}, nil
		})
		again = s.Reconciler(mgr.GetClient(), &corev1.ConfigMap{}, inner)
		f.controls(mgr, s, &corev1.ConfigMap{}, inner)
	})
	receive(f, worked, "the object is worked on")

	held.hold()

	before := f.lease(s)
	require.NoError(t, f.admin.Delete(t.Context(), before))
	f.label(cm, s.shardKey, other.Name())
	f.eventually("the Lease is made anew", func() bool {
		uid := f.lease(s).UID

		return uid != "" && uid != before.UID
	})
	f.eventually("it holds off", func() bool { return errors.Is(s.term.held(), ErrNotHeld) })
	f.eventually("the hold-off is over", func() bool { return s.term.held() == nil })

	result, err := again.Reconcile(t.Context(), request(cm))
	require.NoError(t, err)
	require.Equal(t, recheck, result.RequeueAfter)
	require.Empty(t, worked, "another shard's")

	held.release()
	f.label(cm, s.shardKey, s.Name())
	receive(f, worked, "the object is back")
}

// takenLease creates a Lease of the shard that another holder holds.
func (f *fixture) takenLease(s *Shard) {
	f.Helper()
	require.NoError(f, f.admin.Create(f.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: s.Name(), Labels: map[string]string{contract.LabelClusterRing: f.ring}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new(contract.LeaseControllerIdentity), LeaseDurationSeconds: new(int32(3600)), RenewTime: new(metav1.NowMicro()),
		},
	}))
}
