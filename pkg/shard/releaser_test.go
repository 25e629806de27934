package shard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// writers are the goroutines of all shards that write on behalf of objects.
type writers struct {
	mu       sync.Mutex
	of       map[types.NamespacedName]string
	written  map[string]int // by shard and object
	overlaps []string
}

func newWriters() *writers {
	return &writers{of: map[types.NamespacedName]string{}, written: map[string]int{}}
}

// count returns how many writers a shard has.
func (w *writers) count(s *Shard) int {
	w.mu.Lock()
	defer w.mu.Unlock()

	n := 0

	for _, shard := range w.of {
		if shard == s.Name() {
			n++
		}
	}

	return n
}

func (w *writers) writing(s *Shard, obj client.Object) bool {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.of[client.ObjectKeyFromObject(obj)] == s.Name() && w.written[s.Name()+obj.GetName()] > 0
}

// starter is a reconciler that starts a writer for each object.
type starter struct {
	writers *writers
	shard   *Shard
	fails   atomic.Bool
	calls   atomic.Int64 // of Release

	mu    sync.Mutex
	stops map[types.NamespacedName]func()
}

func (w *writers) starter(s *Shard) *starter {
	return &starter{writers: w, shard: s, stops: map[types.NamespacedName]func(){}}
}

func (s *starter) Reconcile(_ context.Context, req reconcile.Request) (reconcile.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.stops[req.NamespacedName] != nil {
		return reconcile.Result{}, nil
	}

	stop, stopped := make(chan struct{}), make(chan struct{})
	s.stops[req.NamespacedName] = func() { close(stop); <-stopped }

	go func() {
		defer close(stopped)
		s.writers.write(s.shard.Name(), req.NamespacedName, stop)
	}()

	return reconcile.Result{}, nil
}

// write writes until it is told to stop, and a little longer.
func (w *writers) write(shard string, name types.NamespacedName, stop <-chan struct{}) {
	tick := clock.RealClock{}.NewTicker(time.Millisecond)
	defer tick.Stop()

	for last := false; !last; {
		select {
		case <-stop:
			last = true
		case <-tick.C():
		}

		w.mu.Lock()
		if by := w.of[name]; by != "" && by != shard {
			w.overlaps = append(w.overlaps, fmt.Sprintf("%s: %s while %s", name, shard, by))
		}

		w.of[name] = shard
		w.written[shard+name.Name]++
		w.mu.Unlock()
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	delete(w.of, name)
	delete(w.written, shard+name.Name)
}

var errRelease = errors.New("not now")

func (s *starter) Release(_ context.Context, name types.NamespacedName) error {
	s.calls.Add(1)

	if s.fails.Load() {
		return errRelease
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	if stop := s.stops[name]; stop != nil {
		stop()
		delete(s.stops, name)
	}

	return nil
}

// writes adds a controller of ConfigMaps that sees no event but the first one of each object.
func (f *fixture) writes(mgr ctrl.Manager, s *Shard, inner reconcile.Reconciler) *typedReconciler[reconcile.Request] {
	f.Helper()

	r, _ := s.Reconciler(mgr.GetClient(), &corev1.ConfigMap{}, inner).(*typedReconciler[reconcile.Request])
	require.NoError(f, ctrl.NewControllerManagedBy(mgr).Named("test").For(&corev1.ConfigMap{}).
		WithEventFilter(predicate.Funcs{
			UpdateFunc: func(event.UpdateEvent) bool { return false },
			DeleteFunc: func(event.DeleteEvent) bool { return false },
		}).Complete(r))

	return r
}

// What a process writes on behalf of an object ends before another process begins, however the object leaves.
func TestOneWriterPerObject(t *testing.T) {
	f := newFixture(t)
	shards := []*Shard{f.shard("shard-0"), f.shard("shard-1")}
	all := newWriters()

	var processes []*process
	for _, s := range shards {
		processes = append(processes, f.start(s, func(mgr ctrl.Manager) { f.writes(mgr, s, all.starter(s)) }))
	}

	const objects, rounds = 8, 4

	var configMaps []*corev1.ConfigMap
	for i := range objects {
		configMaps = append(configMaps, f.configMap(shards[i%2], fmt.Sprint("object-", i)))
	}

	for round := range rounds {
		for i, cm := range configMaps {
			from, to := shards[(i+round)%2], shards[(i+round+1)%2]
			f.eventually(from.Name()+" writes", func() bool { return all.writing(from, cm) })
			f.label(cm, from.drainKey, to.Name())
		}
	}

	for i, cm := range configMaps {
		f.eventually("the last one writes", func() bool { return all.writing(shards[i%2], cm) })
	}

	f.label(configMaps[0], shards[0].shardKey, "")
	f.eventually("a label that somebody drops ends it", func() bool { return all.count(shards[0]) == objects/2-1 })

	require.NoError(t, processes[0].stop())
	require.Zero(t, all.count(shards[0]), "before the Lease is released")
	require.Empty(t, holder(f.lease(shards[0])))

	exits := exiting(shards[1])
	f.overwrite(shards[1], func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = new("shardlease-controller") })
	processes[1].wait()
	f.eventually("all writers end with the Lease", func() bool { return all.count(shards[1]) == 0 })
	require.Empty(t, exits, "in time")
	require.Empty(t, all.overlaps)
}

// An object whose resources cannot be released stays, and so does the Lease.
func TestReleaseThatFails(t *testing.T) {
	f := newFixture(t)
	s := f.shardFor("shard-0", 3*time.Second)
	exits := exiting(s)
	all := newWriters()
	inner := all.starter(s)
	cm, other := f.configMap(s, "a"), f.configMap(s, "b")
	p := f.start(s, func(mgr ctrl.Manager) { f.writes(mgr, s, inner) })
	f.eventually("it writes", func() bool { return all.count(s) == 2 })

	inner.fails.Store(true)
	f.label(cm, s.drainKey, "true")
	f.eventually("the shard has tried to release it again and again", func() bool { return inner.calls.Load() > 2 })
	f.refresh(cm)
	require.True(t, s.draining(cm))

	inner.fails.Store(false)
	f.released(s, cm)
	require.Equal(t, 1, all.count(s))

	inner.fails.Store(true)
	require.NoError(t, p.stop())
	require.Equal(t, s.Name(), holder(f.lease(s)), "it expires after the process has ended")
	require.ErrorIs(t, receive(f, exits, "the process ends"), errStuck)

	inner.fails.Store(false)
	require.NoError(t, inner.Release(t.Context(), client.ObjectKeyFromObject(other)))
}

// Nothing is remembered of objects that were deleted, even if no worker was told.
func TestDeletedObjectsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Options{Ring: "ring", Name: "shard-0", Namespace: "default"})
		require.NoError(t, err)

		s.term.renewDeadline, s.term.leaseDuration = time.Hour, 2*time.Hour

		scheme := runtime.NewScheme()
		require.NoError(t, metav1.AddMetaToScheme(scheme))

		store := cache.NewStore(cache.MetaNamespaceKeyFunc)
		kind := corev1.SchemeGroupVersion.WithKind("ConfigMap")
		failing := true

		var released atomic.Int64

		handle := s.Handler(Resource{
			Kind: kind, Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Namespaced: true,
			Store: store, Client: fake.NewSimpleMetadataClient(scheme),
			Release: func(context.Context, types.NamespacedName) error { released.Add(1); return nil },
		}, func(_ context.Context, name types.NamespacedName) error {
			if _, exists, _ := store.GetByKey(name.String()); !exists && failing {
				return errRelease
			}

			return nil
		})

		s.term.taken(s.term.clock.Now(), 0)
		t.Cleanup(func() { s.term.close() })
		synctest.Wait()

		const objects = 50

		w := s.wrappers[kind.GroupKind()][0]

		for i := range objects {
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				Namespace: "n", Name: fmt.Sprint("object-", i), ResourceVersion: "5",
				Labels: map[string]string{contract.ShardLabel("ring"): "shard-0"},
			}}
			key := objectKey{kind.GroupKind(), client.ObjectKeyFromObject(cm)}

			require.NoError(t, store.Add(cm))
			_, err := handle(t.Context(), key.NamespacedName)
			require.NoError(t, err)

			// All of this can be left of an object.
			locked(&s.handover.mu, func() { s.handover.passed[key] = "{}" })
			locked(&s.poison.mu, func() { s.poison.held[key] = "" })

			if i%2 == 0 {
				locked(&s.guard.mu, func() { s.guard.objects[key] = &object{drain: drain{version: "5"}} })
			}

			require.NoError(t, store.Delete(cm))
			s.drains.deleted(kind.GroupKind(), cache.DeletedFinalStateUnknown{Key: "n/" + cm.Name, Obj: cm})
			require.Empty(t, s.heldBack())
		}

		pass(forgetAfter - time.Second)
		require.Len(t, w.stays, objects, "a worker may still be told")
		require.EqualValues(t, objects/2, released.Load(), "those that are drained are released at once")

		told := types.NamespacedName{Namespace: "n", Name: "object-1"}
		_, err = handle(t.Context(), told)
		require.ErrorIs(t, err, errRelease, "a worker is told, and cannot finish")

		pass(2 * time.Second)
		require.Len(t, w.stays, 1)

		failing = false
		_, err = handle(t.Context(), told)
		require.NoError(t, err)
		require.Empty(t, w.stays)
		require.Empty(t, s.handover.passed)
		require.Empty(t, s.guard.objects)
		require.EqualValues(t, objects, released.Load())
	})
}

// locked calls the function while the lock is held.
func locked(mu sync.Locker, fn func()) {
	mu.Lock()
	defer mu.Unlock()

	fn()
}

// slow delays what the API server says about Secrets until the gate is open.
type slow struct {
	http.RoundTripper
	gate <-chan struct{}
}

func (s slow) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := s.RoundTripper.RoundTrip(r)
	if err == nil && strings.HasSuffix(r.URL.Path, "/secrets") && r.URL.Query().Get("watch") != "" {
		response.Body = slowBody{response.Body, r.Context(), s.gate}
	}

	return response, err
}

type slowBody struct {
	io.ReadCloser
	ctx  context.Context //nolint:containedctx // that of the request
	gate <-chan struct{}
}

func (b slowBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if strings.Contains(string(p[:n]), "late-") {
		select {
		case <-b.gate:
		case <-b.ctx.Done():
		}
	}

	return n, err
}

// What follows an object comes to the shard before the object does, and its events lead to the object. A reconcile that
// begins then must not see the object arrive before everything that follows it is in the cache.
func TestAnObjectDoesNotArriveDuringAReconcile(t *testing.T) {
	f := newFixture(t)
	s, before := f.shard("shard-0"), f.shard("shard-1")
	owner := f.configMap(before, "owner")
	first := f.secretOf(before, owner, configMapKind, "first")
	second := f.secretOf(before, owner, configMapKind, "late-second")

	open := make(chan struct{})
	f.config = rest.CopyConfig(f.config)
	f.config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return slow{inner, open} })

	counted := make(chan int, 100)
	looked := make(chan struct{}, 100)

	p := f.start(s, func(mgr ctrl.Manager) {
		c := mgr.GetClient()
		count := reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
			looked <- struct{}{}

			arrived := func(ctx context.Context) (bool, error) {
				return c.Get(ctx, req.NamespacedName, &corev1.ConfigMap{}) == nil, nil
			}
			if err := wait.PollUntilContextCancel(ctx, interval, true, arrived); err != nil {
				return reconcile.Result{}, err
			}

			var secrets corev1.SecretList

			err := c.List(ctx, &secrets, client.InNamespace(f.namespace))
			counted <- len(secrets.Items)

			return reconcile.Result{}, err
		})
		wrapped := s.Reconciler(c, &corev1.ConfigMap{}, count)

		require.NoError(f, ctrl.NewControllerManagedBy(mgr).Named("test").For(&corev1.ConfigMap{}).Owns(&corev1.Secret{}).
			Complete(handmade{func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
				defer func() { looked <- struct{}{} }()
				return wrapped.Reconcile(ctx, req)
			}, s}))
	})
	f.eventually("the shard works", func() bool { return s.term.held() == nil })

	f.label(first, s.shardKey, s.Name())
	receive(f, looked, "the event of what came first leads to the owner")
	f.label(second, s.shardKey, s.Name())

	handover := contract.Handover{}
	handover.Reached(corev1.Resource("secrets"), second.ResourceVersion)
	f.refresh(owner)
	metav1.SetMetaDataAnnotation(&owner.ObjectMeta, contract.HandoverAnnotation(f.ring), handover.String())
	owner.Labels = map[string]string{s.shardKey: s.Name()}
	require.NoError(t, f.admin.Update(t.Context(), owner))
	f.eventually("the owner is in the cache", func() bool {
		return p.mgr.GetClient().Get(t.Context(), client.ObjectKeyFromObject(owner), &corev1.ConfigMap{}) == nil
	})

	f.eventually("the owner waits for its cache", func() bool { return len(counted) > 0 || waitingOf(t, f.ring) == 1 })
	require.Empty(t, counted, "a reconcile counted while the cache was behind")
	close(open)
	require.Equal(t, 2, receive(f, counted, "the cache shows everything"))
}

// An absent object is reported once to a reconciler that has run for it, and to no other.
func TestReportsOnlyObjectsThatWereThere(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	s.term.unlimited()

	cache := f.cacheView()

	var (
		calls   int
		failure error
	)

	r := s.Reconciler(cache, &corev1.ConfigMap{},
		reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			calls++
			return reconcile.Result{}, failure
		}))
	look := func(version *corev1.ConfigMap) int {
		cache.object = version
		before := calls
		_, err := r.Reconcile(t.Context(), request(live(f)))
		require.ErrorIs(t, err, failure)

		return calls - before
	}

	require.Equal(t, 0, look(nil), "it has never been there")

	cm := f.configMap(s, "a")
	require.Equal(t, 1, look(cm))

	failure = errors.New("broken")
	require.Equal(t, 1, look(nil), "it was there")

	failure = nil
	require.Equal(t, 1, look(nil), "the first call failed")
	require.Equal(t, 0, look(nil), "it was reported")
}

// An object that has left the cache since an earlier stretch of the term may have been taken, and come back at any
// time.
func TestAsksForObjectsOfAnEarlierStretch(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	s.term.unlimited()
	cm := f.configMap(s, "a")
	name := client.ObjectKeyFromObject(cm)

	here, elsewhere := cm, cm.DeepCopy()
	elsewhere.Labels[s.shardKey] = "shard-1"

	for what, tc := range map[string]struct {
		object *corev1.ConfigMap
		answer error
		calls  int
		fails  bool
		knows  bool
	}{
		"it is another's":     {elsewhere, nil, 0, false, false},
		"it is not there yet": {here, nil, 0, false, true},
		"it is deleted":       {nil, apierrors.NewNotFound(corev1.Resource("configmaps"), "a"), 1, false, false},
		"nobody can tell":     {nil, errors.New("broken"), 0, true, true},
	} {
		t.Run(what, func(t *testing.T) {
			calls := 0
			k := &kind{endpoint: func() (metadata.Getter, error) { return oneAnswer{object: tc.object, err: tc.answer}, nil }}
			w := s.wrap(k)
			inner := func(context.Context) (reconcile.Result, error) {
				calls++
				return reconcile.Result{}, nil
			}

			_, err := w.call(t.Context(), name, true, inner)
			require.NoError(t, err)

			calls = 0
			w.stays[name] = stay{ran: true, stretch: -1, deletion: true} // a stretch ago
			v := visit{shard: s}
			v.into(k.key(name))
			_, err = w.absent(t.Context(), name, inner)
			_, left := v.leave(t.Context(), reconcile.Result{}, nil)
			require.NoError(t, left)
			require.Equal(t, tc.fails, err != nil, "%v", err)
			require.Equal(t, tc.calls, calls)
			require.Equal(t, tc.knows, len(w.stays) > 0)
		})
	}
}

// oneAnswer is an endpoint that has one answer.
type oneAnswer struct {
	metadata.Getter

	object *corev1.ConfigMap
	err    error
}

func (a oneAnswer) Namespace(string) metadata.ResourceInterface { return a }

func (a oneAnswer) Get(context.Context, string, metav1.GetOptions, ...string) (*metav1.PartialObjectMetadata, error) {
	if a.err != nil {
		return nil, a.err
	}

	return &metav1.PartialObjectMetadata{ObjectMeta: a.object.ObjectMeta}, nil
}

// traffic is what the manager sends to the API server about ConfigMaps.
type traffic struct {
	reads atomic.Int64
	lost  atomic.Bool // the next patch is applied, and its answer lost
}

func (f *fixture) traffic() *traffic {
	f.Helper()

	n := &traffic{}
	f.config = rest.CopyConfig(f.config)
	f.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			single := strings.Contains(r.URL.Path, "/configmaps/")
			if single && r.Method == http.MethodGet {
				n.reads.Add(1)
			}

			response, err := next.RoundTrip(r)
			if err == nil && single && r.Method == http.MethodPatch && n.lost.CompareAndSwap(true, false) {
				_ = response.Body.Close()

				return nil, errDown
			}

			return response, err
		})
	})

	return n
}

// If nobody knows whether an object was released, nobody works on it until the API server has told, whatever the cache
// shows.
func TestAcknowledgementWithoutAnAnswer(t *testing.T) {
	unstructuredMap := &unstructured.Unstructured{}
	unstructuredMap.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))

	metadataMap := &metav1.PartialObjectMetadata{}
	metadataMap.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))

	for form, obj := range map[string]client.Object{"typed": &corev1.ConfigMap{}, "unstructured": unstructuredMap,
		"metadata": metadataMap} {
		t.Run(form, func(t *testing.T) {
			f := newFixture(t)
			s := f.shard("shard-0")
			b := newBlocker()
			close(b.proceed)

			n := f.traffic()
			cm := f.configMap(s, "a")
			f.start(s, func(mgr ctrl.Manager) { f.controls(mgr, s, obj, b.reconcile) })
			receive(f, b.entered, "it works")

			n.lost.Store(true)
			f.label(cm, s.drainKey, "shard-1")
			f.eventually("the shard learns that it has released the object", func() bool { return s.released.Load() == 1 })
			f.refresh(cm)
			require.Equal(t, "shard-1", cm.Labels[s.shardKey])

			f.configMap(s, "next")
			require.Equal(t, "next", receive(f, b.entered, "it works").Name)
			require.Empty(t, b.entered)
		})
	}
}

// A label that somebody else changes or drops is no deletion. A deletion is one, and costs a request unless it was
// announced.
func TestRelabelledObjectsAreNotDeleted(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	b := newBlocker()
	close(b.proceed)

	n := f.traffic()
	moved, dropped, deleted, finished := f.configMap(s, "moved"), f.configMap(s, "dropped"), f.configMap(s, "deleted"),
		f.configMap(s, "finished")
	finished.Finalizers = []string{"example.org/test"}
	require.NoError(t, f.admin.Update(t.Context(), finished))

	var ended *atomic.Int64

	f.start(s, func(mgr ctrl.Manager) {
		wrapped := s.Reconciler(mgr.GetClient(), &corev1.ConfigMap{}, reconcile.Func(b.reconcile))
		ended = f.counts(mgr, s, wrapped)
	})

	for range 4 {
		receive(f, b.entered, "it works")
	}

	for _, step := range []struct {
		object *corev1.ConfigMap
		label  string
	}{{moved, "shard-1"}, {dropped, ""}} {
		before := ended.Load()
		f.label(step.object, s.shardKey, step.label)
		f.eventually("a worker has looked", func() bool { return ended.Load() > before })
		require.Empty(t, b.entered, step.object.Name)
	}

	require.NoError(t, f.admin.Delete(t.Context(), deleted))
	require.Equal(t, "deleted", receive(f, b.entered, "it is deleted").Name)

	require.NoError(t, f.admin.Delete(t.Context(), finished))
	require.Equal(t, "finished", receive(f, b.entered, "it is in deletion").Name)

	before := n.reads.Load()

	finished.Finalizers = nil
	finished.ResourceVersion = ""
	require.NoError(t, f.admin.Update(t.Context(), finished))
	require.Equal(t, "finished", receive(f, b.entered, "it is deleted").Name)
	require.Equal(t, before, n.reads.Load(), "nobody had to ask")
}

// counts adds a controller of ConfigMaps without filters. It returns how many reconciles have ended, the wrapper's part
// included.
func (f *fixture) counts(mgr ctrl.Manager, s *Shard, wrapped reconcile.Reconciler) *atomic.Int64 {
	f.Helper()

	c := &counting{inner: wrapped, shard: s}
	require.NoError(f, ctrl.NewControllerManagedBy(mgr).Named("test").For(&corev1.ConfigMap{}).Complete(c))

	return &c.ended
}
