package shard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
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
	of       map[types.NamespacedName]string // the shard that has one
	overlaps []string
}

func newConnections() *connections {
	return &connections{of: map[types.NamespacedName]string{}}
}

// count returns how many connections a shard has.
func (c *connections) count(s *Shard) int {
	c.mu.Lock()
	defer c.mu.Unlock()

	return len(slices.DeleteFunc(slices.Collect(maps.Values(c.of)), func(of string) bool { return of != s.Name() }))
}

func (c *connections) has(s *Shard, obj client.Object) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.of[client.ObjectKeyFromObject(obj)] == s.Name()
}

// connector is a reconciler that opens a connection for each object.
type connector struct {
	*connections

	shard *Shard
	fails atomic.Bool
	calls atomic.Int64 // of Release
}

func (c *connector) Reconcile(_ context.Context, req reconcile.Request) (reconcile.Result, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if by := c.of[req.NamespacedName]; by != "" && by != c.shard.Name() {
		c.overlaps = append(c.overlaps, fmt.Sprintf("%s: %s while %s", req, c.shard.Name(), by))
	}

	c.of[req.NamespacedName] = c.shard.Name()

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

	if c.of[name] == c.shard.Name() {
		delete(c.of, name)
	}

	return nil
}

// connects adds a controller of ConfigMaps that sees no event but the first one of each object.
func (f *fixture) connects(mgr ctrl.Manager, s *Shard, inner reconcile.Reconciler) {
	f.Helper()
	require.NoError(f, ctrl.NewControllerManagedBy(mgr).Named("test").For(&corev1.ConfigMap{}).
		WithEventFilter(predicate.Funcs{
			UpdateFunc: func(event.UpdateEvent) bool { return false },
			DeleteFunc: func(event.DeleteEvent) bool { return false },
		}).Complete(s.Reconciler(mgr.GetClient(), &corev1.ConfigMap{}, inner)))
}

// What a process holds for an object ends before another process begins, however the object leaves.
func TestOneConnectionPerObject(t *testing.T) {
	f := newFixture(t)
	shards := []*Shard{f.shard("shard-0"), f.shard("shard-1")}
	all := newConnections()

	var processes []*process

	for _, s := range shards {
		inner := &connector{connections: all, shard: s}
		processes = append(processes, f.start(s, func(mgr ctrl.Manager) { f.connects(mgr, s, inner) }))
	}

	const objects, rounds = 8, 4

	var configMaps []*corev1.ConfigMap
	for i := range objects {
		configMaps = append(configMaps, f.configMap(shards[i%2], fmt.Sprint("object-", i)))
	}

	for round := range rounds {
		for i, cm := range configMaps {
			from, to := shards[(i+round)%2], shards[(i+round+1)%2]
			f.eventually(from.Name()+" has it", func() bool { return all.has(from, cm) })
			f.label(cm, from.drainKey, to.Name())
		}
	}

	for i, cm := range configMaps {
		f.eventually("the last one has it", func() bool { return all.has(shards[i%2], cm) })
	}

	f.label(configMaps[0], shards[0].shardKey, "")
	f.eventually("a label that somebody drops ends it", func() bool { return all.count(shards[0]) == objects/2-1 })

	require.NoError(t, processes[0].stop())
	require.Zero(t, all.count(shards[0]), "before the Lease is released")
	require.Empty(t, holder(f.lease(shards[0])))

	exits := exiting(shards[1])
	f.overwrite(shards[1], func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = new("shardlease-controller") })
	processes[1].wait()
	f.eventually("all end with the Lease", func() bool { return all.count(shards[1]) == 0 })
	require.Empty(t, exits, "in time")
	require.Empty(t, all.overlaps)
}

// An object whose resources cannot be released stays, and so does the Lease.
func TestReleaseThatFails(t *testing.T) {
	f := newFixture(t)
	s := f.brief()
	exits := exiting(s)
	inner := &connector{connections: newConnections(), shard: s}
	cm := f.configMap(s, "a")
	f.configMap(s, "b")
	p := f.start(s, func(mgr ctrl.Manager) { f.connects(mgr, s, inner) })
	f.eventually("it has both", func() bool { return inner.count(s) == 2 })

	inner.fails.Store(true)
	f.label(cm, s.drainKey, "true")
	f.eventually("the shard has tried to release it again and again", func() bool { return inner.calls.Load() > 2 })
	f.refresh(cm)
	require.True(t, s.draining(cm))

	inner.fails.Store(false)
	f.released(cm)
	require.Equal(t, 1, inner.count(s))

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

// What follows an object comes to the shard before the object does, and its events lead to the object. A reconcile that
// begins then must not see the object arrive before everything that follows it is in the cache.
func TestAnObjectDoesNotArriveDuringAReconcile(t *testing.T) {
	f := newFixture(t)
	s, before := f.shard("shard-0"), f.shard("shard-1")
	owner := f.configMap(before, "owner")
	first := f.secretOf(before, owner, configMapKind, "first")
	second := f.secretOf(before, owner, configMapKind, "second")
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
