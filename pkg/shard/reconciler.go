package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// recheck is when a worker that could not decide, or could not start yet, checks again. Usually, an event or the worker
// that leaves last comes first.
const recheck = 2 * time.Second

// Reconciler wraps a reconciler of one kind so that it runs only for objects that belong to this shard and are not
// draining, and so that drains are acknowledged. [NewManager] does this for the controllers that are added to it; wrap
// by hand those of which it cannot see the reconciler, and in tests. If the controller of an object is of another
// declared kind, the object also waits for the drain of its controller, and that drain waits for the object, and so on.
//
// obj is an empty object of one of [Options].Kinds. The client is read only in tests, where the shard has no manager.
// The inner reconciler is also called for an object that it has worked on and that was deleted; see NotFound in the
// package documentation. Its results and errors are passed on. If it cannot decide yet, the object is reconciled again.
func (s *Shard) Reconciler(c client.Client, obj client.Object, inner reconcile.Reconciler) reconcile.Reconciler {
	return newReconciler(s.wrap(s.kindOf(c, obj)), inner, requested)
}

// wrapped is a reconciler or handler that a shard has wrapped. It calls the inner function for absent objects only if
// nothing can bring them back while the function runs: it reads the cache, and would work on what no look preceded.
//
//	A1  The function is called for an absent object only if it has run for that object. An object that is handed over
//	    comes after the objects that follow it; their events lead here while it is still absent.
//	A2  If it has not run for the object in deletion, in the present stretch of the term, the API server must confirm
//	    that the object no longer exists: an object whose label somebody else has changed is absent, too, and so is one
//	    that was taken.
//
// This costs the memory of one name per object. A name is forgotten when the object has left the shard.
type wrapped struct {
	shard *Shard
	kind  *kind
	// ends is [Releaser].Release of the inner reconciler, or nil.
	ends func(context.Context, types.NamespacedName) error
	// wake makes the controller reconcile an object again, if it can be reached. Otherwise, its next event does.
	wake func(types.NamespacedName)

	mu    sync.Mutex
	stays map[types.NamespacedName]stay
}

// stay is the time of an object in the shard, as one function knows it.
type stay struct {
	ran      bool // whether the function has run
	stretch  int  // the stretch of the term in which it ran last
	deletion bool // whether the object was in deletion then
	told     bool // whether the function was called for the absent object
	ended    bool // whether ends has returned since
}

func (s *Shard) wrap(k *kind) *wrapped {
	w := &wrapped{shard: s, kind: k, stays: map[types.NamespacedName]stay{}, wake: func(types.NamespacedName) {}}

	s.mu.Lock()
	defer s.mu.Unlock()

	gk := k.gvk.GroupKind()
	s.wrappers[gk] = append(s.wrappers[gk], w)

	return w
}

// reach lets wake reach the queue of a controller. It is a source of the controller.
func (w *wrapped) reach(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.wake = func(name types.NamespacedName) { queue.Add(reconcile.Request{NamespacedName: name}) }

	return nil
}

// woken makes the controller reconcile an object again, if it can be reached.
func (w *wrapped) woken(name types.NamespacedName) {
	w.mu.Lock()
	wake := w.wake
	w.mu.Unlock()

	wake(name)
}

// ofShard marks reconcilers that a shard has wrapped.
func (w *wrapped) ofShard() *Shard { return w.shard }

func (w *wrapped) call(
	ctx context.Context, name types.NamespacedName, deletion bool, inner workFunc,
) (reconcile.Result, error) {
	stretch, err := w.shard.term.current()
	if err != nil {
		return later(err)
	}

	w.change(name, func(last *stay) { *last = stay{ran: true, stretch: stretch, deletion: deletion} })

	return inner(ctx)
}

// absent calls the function for an object that was deleted. It is called until it returns no error, and does not
// request another call.
func (w *wrapped) absent(ctx context.Context, name types.NamespacedName, inner workFunc) (reconcile.Result, error) {
	stretch, err := w.shard.term.current()
	if err != nil {
		return later(err)
	}

	last := w.last(name)
	if !last.ran {
		w.forget(name)
		return reconcile.Result{}, nil
	}

	if !last.deletion || last.stretch != stretch {
		// If the object exists, it is gone from here. If it comes back, an event leads here.
		if may, err := w.shard.whereabouts(ctx, w.kind, name); err != nil || may != absent {
			return reconcile.Result{}, err
		}
	}

	w.change(name, func(last *stay) { last.told = true })

	result, err := inner(ctx)
	if err != nil || !result.IsZero() {
		return result, err
	}

	if err := w.release(ctx, name); err != nil {
		return reconcile.Result{}, err
	}

	w.forget(name)

	return reconcile.Result{}, nil
}

func (w *wrapped) last(name types.NamespacedName) stay {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.stays[name]
}

func (w *wrapped) change(name types.NamespacedName, fn func(*stay)) {
	w.mu.Lock()
	defer w.mu.Unlock()

	last := w.stays[name]
	fn(&last)
	w.stays[name] = last
}

// whereabouts returns what has become of an object that is not in the cache, as the API server knows it: absent if it
// does not exist, gone if it is not this shard's, or unclear if it is: the cache is behind, or has another selector in
// addition. The caller is inside the object.
func (s *Shard) whereabouts(ctx context.Context, k *kind, name types.NamespacedName) (verdict, error) {
	switch obj, err := k.live(ctx, name); {
	case err != nil:
		return unclear, err
	case obj == nil:
		return absent, nil
	case s.Owns(obj):
		return unclear, nil
	default:
		s.guard.depart(k.key(name), obj.GetResourceVersion())

		return gone, nil
	}
}

func (w *wrapped) forget(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()

	delete(w.stays, name)
}

// depart forgets an object that the cache shows as another's, or not at all. What the process holds for it is released
// when no worker is inside the object.
func (w *wrapped) depart(name types.NamespacedName) {
	if w.last(name).ran {
		w.shard.guard.depart(w.kind.key(name), "")
	} else {
		w.forget(name)
	}
}

// view returns the assignment of an object; nil stands for an absent object.
func (s *Shard) view(obj metav1.Object) view {
	if obj == nil {
		return view{}
	}

	return view{
		version: obj.GetResourceVersion(), owned: s.Owns(obj), draining: s.draining(obj),
		next: contract.NextShard(obj.GetLabels()[s.drainKey]),
	}
}

// work calls the function if this process may work on the object, and acknowledges drains before and after.
func (w *wrapped) work(
	ctx context.Context, name types.NamespacedName, inner workFunc,
) (result reconcile.Result, err error) {
	if w.kind.err != nil {
		return reconcile.Result{}, reconcile.TerminalError(w.kind.err) //nolint:wrapcheck // it is wrapped
	}

	m, _ := ctx.Value(markKey{}).(mark)
	v := &visit{shard: w.shard, controller: w.controllerOf(m), began: w.shard.term.clock.Now()}

	ctx, end, err := w.shard.term.begin(ctx)
	if err != nil {
		v.refused(run, err)
		return later(err)
	}
	defer end()

	w.shard.progress.begins(v)
	defer func() {
		if result, err = v.leave(context.WithoutCancel(ctx), result, err); v.pending {
			w.shard.drains.again(v.keys...)
		}
		w.shard.progress.ends(v)
	}()

	may, err := v.enter(ctx, w.kind, name)
	v.refused(may, err)

	switch {
	case err != nil:
		return later(err)
	case may == run:
		return w.try(ctx, v, inner)
	case may == absent:
		return w.absent(ctx, name, inner)
	case may == drained || may == unclear:
		return reconcile.Result{RequeueAfter: recheck}, nil
	default:
		w.depart(name)

		return reconcile.Result{}, nil
	}
}

// later returns the result of a reconcile that could not begin. If it only has to wait, this is not an error.
func later(err error) (reconcile.Result, error) {
	if wait := (waitError{}); errors.As(err, &wait) {
		return reconcile.Result{RequeueAfter: max(wait.left, time.Millisecond)}, nil
	}

	return reconcile.Result{}, err
}

// workFunc is what a controller does for one object. Its results and errors are passed on.
type workFunc func(ctx context.Context) (reconcile.Result, error)

// visit is one worker's stay inside an object and everything that the object follows.
type visit struct {
	shard *Shard
	keys  []objectKey
	// obj is the object as the cache shows it, and deletion is true if it is in deletion.
	obj      metav1.Object
	deletion bool
	// pending is true if an object that was to be released was not.
	pending bool
	// unseen is true if a controller that must be an object of this shard is none.
	unseen bool
	// controller is that of the reconcile, and began is when it did; empty: the shard itself looks.
	controller string
	began      time.Time
}

// enter enters the object, and everything of wrapped kinds that it follows. It returns what may be done to the object.
func (v *visit) enter(ctx context.Context, k *kind, name types.NamespacedName) (verdict, error) {
	obj, may, err := v.look(ctx, k, name)
	v.obj, v.deletion = obj, obj != nil && obj.GetDeletionTimestamp() != nil

	for range contract.MaxDepth - 1 {
		if err != nil || may != run || obj == nil {
			return may, err
		}

		controller := metav1.GetControllerOfNoCopy(obj)
		if controller == nil || k.main {
			return run, nil
		}

		owner := v.shard.kind(schema.FromAPIVersionAndKind(controller.APIVersion, controller.Kind).GroupKind(),
			obj.GetNamespace())
		if owner == nil {
			return run, nil
		}

		if obj, may, err = v.enterOwner(ctx, owner, obj, controller); err != nil {
			return unclear, err
		}

		k = owner
	}

	return may, err
}

// enterOwner returns what may be done to an object of this shard, based on its controller, which it follows. The
// controller is nil if it no longer exists and the object is to be finished.
func (v *visit) enterOwner(
	ctx context.Context, owner *kind, obj metav1.Object, controller *metav1.OwnerReference,
) (metav1.Object, verdict, error) {
	key, err := owner.named(obj.GetNamespace(), controller.Name)
	if err != nil {
		return nil, unclear, err
	}

	has, may, err := v.look(ctx, owner, key)
	switch {
	case err != nil:
		return nil, unclear, err
	case may == run:
		return has, may, nil
	case (may == absent || may == gone) && obj.GetDeletionTimestamp() != nil:
		// If the owner no longer exists, nobody else will finish the deletion. Another shard's is not in the cache either.
		if has, err = owner.live(ctx, key); err != nil || has != nil && has.GetUID() == controller.UID {
			return nil, unclear, err
		}

		return nil, run, nil
	default:
		// The object follows its owner, or is garbage-collected after it, or the owner comes back into view.
		if may == absent || may == gone || may == foreign {
			v.unseen = true
		}

		return nil, unclear, nil
	}
}

// look enters one object and judges its cached state, and that of what follows it.
func (v *visit) look(ctx context.Context, k *kind, name types.NamespacedName) (metav1.Object, verdict, error) {
	obj, may, err := v.see(ctx, k, name)
	if err != nil || may != run {
		return obj, may, err
	}

	missing, after, err := v.shard.handover.awaits(ctx, k.key(name), obj, v.shard.term.clock.Now())
	if err == nil && missing != "" {
		err = waitError{errBehind, after}
	}

	if err != nil {
		return obj, unclear, err
	}

	return obj, run, nil
}

func (v *visit) into(key objectKey) {
	v.shard.guard.enter(key)
	v.shard.progress.into(v, key)
}

// refused counts the reconcile, if it does not run.
func (v *visit) refused(may verdict, err error) {
	v.shard.progress.refused(v.shard.progress.reconciles, v.controller, reasonOf(may, v.unseen, err))
}

// see enters one object and judges its cached state, if that is as new as the term.
func (v *visit) see(ctx context.Context, k *kind, name types.NamespacedName) (metav1.Object, verdict, error) {
	if err := k.inventory.prepare(ctx); err != nil {
		return nil, unclear, err
	}

	key := k.key(name)
	v.into(key)

	obj, err := k.read(ctx, name)
	if err != nil {
		return nil, unclear, err
	}

	cached := v.shard.view(obj)
	if cached.owned || cached.version == "" { // nothing is done with objects of other shards anyway
		confirmed, err := k.inventory.confirm(ctx, name, cached)
		if err == nil && !confirmed {
			log.FromContext(ctx).V(1).Info("Waiting until the cache shows the object as it was in this term", "kind", k.gvk.Kind,
				"object", name, "cachedVersion", cached.version)
		}

		if err != nil || !confirmed {
			return obj, unclear, err
		}
	}

	may := v.shard.guard.judge(key, cached)
	if may != run {
		v.shard.handover.forget(key)
	}

	if may == absent || may == gone || may == foreign {
		v.shard.poison.forget(key)
	}

	return obj, may, nil
}

// leave leaves every object that was entered, acknowledges the drains that waited for this, and adds the outcome to the
// result of the reconcile. The context is not that of the reconcile.
func (v *visit) leave(ctx context.Context, result reconcile.Result, err error) (reconcile.Result, error) {
	for _, key := range v.keys {
		asked, acknowledge := v.shard.guard.leave(key)
		if !acknowledge {
			continue
		}

		done, ackErr := v.shard.acknowledge(ctx, key, asked)
		v.pending = v.pending || !done

		switch {
		case apierrors.IsConflict(ackErr):
			// The object has changed meanwhile; its event leads here again.
			if result.RequeueAfter == 0 || result.RequeueAfter > recheck {
				result.RequeueAfter = recheck
			}
		case ackErr != nil && err != nil:
			// The error of the drain comes first, because the other one may be terminal.
			err = fmt.Errorf("%w (after the reconcile failed: %v)", ackErr, err) //nolint:errorlint // see above
		case ackErr != nil:
			err = ackErr
		case done && key == v.keys[0]:
			result = reconcile.Result{} // it is released: the next event says what comes
		}
	}

	if err != nil {
		result = reconcile.Result{}
	}

	return result, err
}

// Resource describes a sharded resource to a controller that does not use controller-runtime. Every field is required
// except Namespaced, whose zero value stands for a cluster-scoped resource, Namespace, Main, and Release.
type Resource struct {
	// Kind is the kind of the resource's objects.
	Kind schema.GroupVersionKind
	// Resource is the resource, in any served version.
	Resource schema.GroupVersionResource
	// Namespaced is true if the objects are namespaced.
	Namespaced bool
	// Namespace is the namespace of the controller's informer; empty if the informer watches all namespaces. A controller
	// with an informer for each of several namespaces has a handler for each.
	Namespace string
	// Main is true for main resources whose objects can be controlled by objects of another one, such as Jobs, if the ring
	// lists both CronJobs and Jobs as main resources. Such an object does not follow its controller.
	Main bool
	// Store is the store of the controller's informer: informer.GetStore(), with keys that consist of namespace and name.
	Store cache.Store
	// Client removes the labels of released objects, reads owners not in the store, and lists this shard's objects once
	// after the Lease was taken.
	Client metadata.Interface
	// Release is [Releaser].Release of the controller, or nil if it holds nothing for an object beside its queue.
	Release func(ctx context.Context, name types.NamespacedName) error
}

// Handler is [Shard.Reconciler] for controllers that do not use controller-runtime. It wraps the function that a
// controller calls for a key from its queue. Wrap every such function of the process, including those of controlled
// kinds. For a controlled resource of the ring without such a function, call Handler with nil, which declares it: a
// hand-over that names a resource which is not declared is an error. Add to the queue on all events, or at least those
// that change labels.
//
// Call the returned function with the key. It returns the error of sync or its own; retry in both cases. If it returns
// a positive duration, add the key again after that time.
func (s *Shard) Handler(r Resource, sync SyncFunc) func(context.Context, types.NamespacedName) (time.Duration, error) {
	k := r.kind()
	if k.err == nil {
		k.inventory, k.stores = newInventory(s, k), s.stores
		s.stores.add(&store{Store: r.Store, form: form{gvk: r.Kind}, endpoint: k.endpoint, namespace: r.Namespace},
			r.Resource.GroupResource())
		s.declare(declared{r.Kind.GroupKind(): {main: r.Main}})
		s.register(k)
	}

	w := s.wrap(k)
	w.ends = r.Release

	return func(ctx context.Context, name types.NamespacedName) (time.Duration, error) {
		ctx = logr.NewContext(ctx, klog.FromContext(ctx))
		result, err := w.work(ctx, name, func(ctx context.Context) (reconcile.Result, error) {
			return reconcile.Result{}, sync(ctx, name)
		})

		return result.RequeueAfter, err
	}
}

// SyncFunc is what a controller does for one object. The context ends when the Lease is lost.
type SyncFunc func(ctx context.Context, name types.NamespacedName) error

func (r Resource) kind() *kind {
	if r.Kind.Kind == "" || r.Kind.Version == "" || r.Resource.Resource == "" || r.Resource.Version == "" ||
		r.Store == nil || r.Client == nil {
		return &kind{err: fmt.Errorf("resource %s: set Kind, Resource, Store, and Client", r.Resource.GroupResource())}
	}

	return &kind{
		gvk: r.Kind, namespace: r.Namespace,
		endpoint:   func() (metadata.Getter, error) { return r.Client.Resource(r.Resource), nil },
		namespaced: func() (bool, error) { return r.Namespaced, nil },
	}
}

// Releaser is implemented by a reconciler that keeps something for an object between reconciles, such as goroutines,
// connections, temporary files, or gauges. [Shard.Reconciler] finds the method on the reconciler that it wraps.
//
// Release ends all of this for one object. The shard calls it once for each object that the reconciler has run for,
// when the object's stay in the shard ends, and waits for it: before it acknowledges a drain, when somebody else has
// changed the label, after a deletion, and for all objects when the Lease is lost, and before it is released.
//
// Release never runs while a reconciler works on the object. If it returns an error, the shard logs it, and calls it
// again after a while; meanwhile, it does not acknowledge the drain, or keeps the Lease. If the drain is withdrawn
// after Release, the object is reconciled again, so reconciles must start again what Release has ended.
type Releaser interface {
	Release(ctx context.Context, name types.NamespacedName) error
}

// releaseOf returns the method of a reconciler that implements [Releaser], or nil.
func releaseOf(r any) func(context.Context, types.NamespacedName) error {
	if r, ok := r.(Releaser); ok {
		return r.Release
	}

	return nil
}

const (
	// releaseTimeout limits one call of Release.
	releaseTimeout = 30 * time.Second
	// releasesAtOnce is how many objects are released at once when the term ends.
	releasesAtOnce = 32
)

// release ends what the process holds for an object. No worker is inside the object.
func (s *Shard) release(ctx context.Context, key objectKey) error {
	var errs []error
	for _, w := range s.wrappersOf(key) {
		errs = append(errs, w.release(ctx, key.NamespacedName))
	}

	return errors.Join(errs...)
}

func (s *Shard) forget(key objectKey) {
	for _, w := range s.wrappersOf(key) {
		w.forget(key.NamespacedName)
	}

	s.handover.forget(key)
	s.poison.forget(key)
}

func (s *Shard) wrappersOf(key objectKey) []*wrapped {
	s.mu.RLock()
	defer s.mu.RUnlock()

	return s.wrappers[key.GroupKind]
}

// release calls Release, unless that is done or nothing is held. The function does not run for the object.
func (w *wrapped) release(ctx context.Context, name types.NamespacedName) error {
	if !w.holds(name) {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()

	if err := w.ends(ctx, name); err != nil {
		return fmt.Errorf("release what the process holds for %s %s: %w", w.kind.gvk.Kind, name, err)
	}

	w.change(name, func(last *stay) { last.ended = true })

	return nil
}

func (w *wrapped) holds(name types.NamespacedName) bool {
	last := w.last(name)

	return w.ends != nil && last.ran && !last.ended
}

// releaseAll ends what the process holds for all objects, after the term. If it fails, the process must end before
// another one has the objects.
func (s *Shard) releaseAll(ctx context.Context) error {
	// This is less than what T3 leaves when the Lease is lost.
	limit := (s.options.LeaseDuration - s.options.RenewDeadline) * 4 / 5

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()

	for {
		held := s.held()
		if len(held) == 0 {
			return nil
		}

		errs := make([]error, len(held))
		workqueue.ParallelizeUntil(ctx, releasesAtOnce, len(held), func(i int) {
			v := &visit{shard: s}
			v.into(held[i])
			s.guard.depart(held[i], "")
			// a worker that is still inside releases the object when it leaves
			_, errs[i] = v.leave(ctx, reconcile.Result{}, nil)
		})

		select {
		case <-ctx.Done():
			i := max(0, slices.IndexFunc(errs, func(err error) bool { return err != nil }))

			return fmt.Errorf("%d objects are not released, or still worked on: %w", len(held),
				cmp.Or(errs[i], context.Cause(ctx)))
		case <-s.term.clock.After(soon):
		}
	}
}

// wake makes controllers reconcile an object again that stays, after they have released what they hold for it.
func (s *Shard) wake(key objectKey) {
	for _, w := range s.wrappersOf(key) {
		if w.last(key.NamespacedName).ended {
			w.woken(key.NamespacedName)
		}
	}
}

func (s *Shard) held() []objectKey {
	s.mu.RLock()
	defer s.mu.RUnlock()

	var keys []objectKey

	for _, wrappers := range s.wrappers {
		for _, w := range wrappers {
			w.mu.Lock()
			for name, last := range w.stays {
				if w.ends != nil && last.ran && !last.ended {
					keys = append(keys, w.kind.key(name))
				}
			}
			w.mu.Unlock()
		}
	}

	return keys
}
