package shard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// connections are what the reconcilers of all shards hold for objects.
type connections struct {
	mu       sync.Mutex
	of       map[string]string // the shard that has one, by object and controller
	overlaps []string
}

func newConnections() *connections { return &connections{of: map[string]string{}} }

// count returns how many connections a shard has, of one object if there is a name.
func (c *connections) count(s *Shard, name string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()

	for of, shard := range c.of {
		if shard == s.Name() && strings.HasPrefix(of, name) {
			n++
		}
	}

	return n
}

// connector is a reconciler that opens a connection for each object. It writes to the object several times, so that the
// work takes time.
type connector struct {
	*connections

	name   string
	shard  *Shard
	client client.Client
	fails  atomic.Bool
	calls  atomic.Int64 // of Release
}

func (c *connector) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	c.mu.Lock()

	for of, by := range c.of {
		if by != c.shard.Name() && strings.HasPrefix(of, req.Name+" ") {
			c.overlaps = append(c.overlaps, fmt.Sprintf("%s of %s: %s while %s", c.name, req, c.shard.Name(), by))
		}
	}

	c.of[req.Name+" "+c.name] = c.shard.Name()
	c.mu.Unlock()

	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: req.Namespace, Name: req.Name}}
	for i := range 3 {
		patch := fmt.Sprintf(`{"data":{%q:%q}}`, c.name, fmt.Sprint(c.shard.Name(), "-", i))
		if err := c.client.Patch(ctx, cm, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			return reconcile.Result{}, fmt.Errorf("write: %w", err)
		}
	}

	return reconcile.Result{}, nil
}

var errRelease = errors.New("not now")

func (c *connector) Release(_ context.Context, name types.NamespacedName) error {
	c.calls.Add(1)

	if c.fails.Load() {
		return errRelease
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	delete(c.of, name.Name+" "+c.name)

	return nil
}

// connects adds a controller of ConfigMaps that sees no event but the first one of each object.
func (f *fixture) connects(mgr ctrl.Manager, inner *connector) {
	f.Helper()

	inner.client = mgr.GetClient()
	require.NoError(f, ctrl.NewControllerManagedBy(mgr).Named("test").For(&corev1.ConfigMap{}).
		WithEventFilter(predicate.Funcs{
			UpdateFunc: func(event.UpdateEvent) bool { return false },
			DeleteFunc: func(event.DeleteEvent) bool { return false },
		}).Complete(inner.shard.Reconciler(mgr.GetClient(), &corev1.ConfigMap{}, inner)))
}

// An object whose resources cannot be released stays, and so does the Lease.
func TestReleaseThatFails(t *testing.T) {
	f := newFixture(t)
	s := f.brief()
	exits := exiting(s)
	inner := &connector{connections: newConnections(), shard: s}
	cm := f.configMap(s, "a")
	f.configMap(s, "b")
	p := f.start(s, func(mgr ctrl.Manager) { f.connects(mgr, inner) })
	f.eventually("it has both", func() bool { return inner.count(s, "") == 2 })

	inner.fails.Store(true)
	f.label(cm, s.drainKey, "true")
	f.eventually("the shard has tried to release it again and again", func() bool { return inner.calls.Load() > 2 })
	f.refresh(cm)
	require.True(t, s.draining(cm))

	inner.fails.Store(false)
	f.released(cm)
	require.Equal(t, 1, inner.count(s, ""))

	inner.fails.Store(true)
	require.NoError(t, p.stop())
	require.Equal(t, s.Name(), holder(f.lease(s)), "it expires after the process has ended")
	require.ErrorIs(t, receive(f, exits, "the process ends"), errStuck)
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

		resource := resourceOf(kind.Kind, store, fake.NewSimpleMetadataClient(scheme))
		resource.Release = func(context.Context, types.NamespacedName) error { released.Add(1); return nil }
		handle := s.Handler(resource, func(_ context.Context, name types.NamespacedName) error {
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

// What follows an object comes to the shard before the object does, and its events lead to the object. A reconcile that
// begins then must not see the object arrive before everything that follows it is in the cache.
func TestAnObjectDoesNotArriveDuringAReconcile(t *testing.T) {
	f := newFixture(t)
	s, before := f.shard("shard-0"), f.shard("shard-1")
	owner := f.configMap(before, "owner")
	first := f.secretOf(before, owner, "first")
	second := f.secretOf(before, owner, "second")
	held := f.holdable("secrets")

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
	held.hold()
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
	held.release()
	require.Equal(t, 2, receive(f, counted, "the cache shows everything"))
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

// If nobody knows whether an object was released, nobody works on it until the API server has told, whatever the cache
// shows.
func TestAcknowledgementWithoutAnAnswer(t *testing.T) {
	for _, form := range forms {
		t.Run(form, func(t *testing.T) {
			f := newFixture(t)
			s := f.shard("shard-0")
			obj, _ := emptyOf(form, "ConfigMap")
			w, worked := f.wire(), newNames()
			cm := f.configMap(s, "a")
			f.start(s, func(mgr ctrl.Manager) { f.controls(mgr, s, obj, worked.reconcile) })
			receive(f, worked, "it works")

			// The patch is applied, and its answer lost.
			w.via(func(req *http.Request, next http.RoundTripper) (*http.Response, error) {
				if req.Method != http.MethodPatch || !strings.HasSuffix(req.URL.Path, "/configmaps/a") {
					return next.RoundTrip(req)
				}
				w.via(nil)

				return lost(req, next)
			})
			f.label(cm, s.drainKey, "shard-1")
			f.eventually("the shard learns that it has released the object", func() bool { return s.released.Load() == 1 })
			f.refresh(cm)
			require.Equal(t, "shard-1", cm.Labels[s.shardKey])

			f.configMap(s, "next")
			require.Equal(t, "next", receive(f, worked, "it works"))
			require.Empty(t, worked)
		})
	}
}

// A label that somebody else changes or drops is no deletion. A deletion is one, and costs a request unless it was
// announced.
func TestRelabelledObjectsAreNotDeleted(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	w, worked := f.wire(), newNames()
	moved, dropped, deleted, finished := f.configMap(s, "moved"), f.configMap(s, "dropped"), f.configMap(s, "deleted"),
		f.configMap(s, "finished")
	finished.Finalizers = []string{"example.org/test"}
	require.NoError(t, f.admin.Update(t.Context(), finished))

	f.start(s, func(mgr ctrl.Manager) {
		require.NoError(t, ctrl.NewControllerManagedBy(mgr).Named("test").For(&corev1.ConfigMap{}).
			Complete(reconcile.Func(worked.reconcile)))
	})

	for range 4 {
		receive(f, worked, "it works")
	}

	f.label(moved, s.shardKey, "shard-1")
	f.label(dropped, s.shardKey, "")
	require.NoError(t, f.admin.Delete(t.Context(), deleted))
	require.Equal(t, "deleted", receive(f, worked, "it is deleted"))

	require.NoError(t, f.admin.Delete(t.Context(), finished))
	require.Equal(t, "finished", receive(f, worked, "it is in deletion"))

	finished.Finalizers = nil
	finished.ResourceVersion = ""
	require.NoError(t, f.admin.Update(t.Context(), finished))
	require.Equal(t, "finished", receive(f, worked, "it is deleted"))
	require.Zero(t, w.count("get * finished"), "nobody had to ask")
	require.Empty(t, worked)
}
