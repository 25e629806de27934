package ordinal

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

const (
	// retry is how long the source waits after it could not get the informer.
	retry = time.Second
	// forgetAfter is how long after its deletion an object is forgotten of which no reconcile was told. A controller with a long queue may still be.
	forgetAfter = 10 * time.Minute
)

// Owns reports whether the object belongs to this process. The error is that the scheme of the manager does not know the kind.
func (p *Process) Owns(obj client.Object) (bool, error) {
	hash, err := p.hash(obj)

	return err == nil && p.share().owns(hash), err
}

func (p *Process) hash(obj client.Object) (uint64, error) {
	gvk, err := apiutil.GVKForObject(obj, p.scheme)
	if err != nil {
		return 0, fmt.Errorf("determine the kind of %T: %w", obj, err)
	}

	return p.options.Hash(gvk.GroupKind(), obj), nil
}

// Predicate returns a predicate that passes an event of an object of this process if all given predicates pass it, and no event of another object.
// It saves queueing: [Process.Reconciler] checks again. Use it for the kind of the controller, not for those that it owns.
func (p *Process) Predicate(inner ...predicate.Predicate) predicate.Predicate {
	mine := predicate.NewPredicateFuncs(func(obj client.Object) bool {
		owns, err := p.Owns(obj)
		return owns || err != nil // the reconciler reports the error
	})

	return predicate.And(slices.Insert(slices.Clone(inner), 0, predicate.Predicate(mine))...)
}

// Source returns a source that enqueues all objects of this process, from the cache of the manager, each time that its share changes: those that it
// has gained were dropped before. Add it to each controller whose reconciler is wrapped, with its kind in the form that it watches. Nearly all objects
// change their process anyway when the number of replicas does.
func (p *Process) Source(c cache.Cache, obj client.Object) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		go wait.UntilWithContext(ctx, func(ctx context.Context) {
			informer, err := c.GetInformer(ctx, obj)
			if err == nil {
				err = p.follow(ctx, informer, queue)
			}

			if err != nil && ctx.Err() == nil {
				log.Log.WithName("ordinal").Error(err, "Cannot enqueue the objects of this process; trying again", "kind", fmt.Sprintf("%T", obj))
			}
		}, retry)

		return nil
	})
}

// follow enqueues the objects of this process, and does so again each time that its share changes. It also sees which objects are deleted.
func (p *Process) follow(ctx context.Context, informer cache.Informer, queue workqueue.TypedInterface[reconcile.Request]) error {
	_, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{DeleteFunc: p.forgetLater})

	for err == nil {
		changed := p.latest.Load().changed // before objects are looked at

		// A new handler is told of all objects.
		handler, failed := informer.AddEventHandler(toolscache.ResourceEventHandlerDetailedFuncs{AddFunc: func(found any, initial bool) {
			obj, ok := found.(client.Object)
			if !ok || !initial {
				return
			}

			if owns, err := p.Owns(obj); owns && err == nil {
				queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(obj)})
			}
		}})
		if failed != nil {
			return failed //nolint:wrapcheck // the source says what for
		}

		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			err = informer.RemoveEventHandler(handler)
		}
	}

	return err //nolint:wrapcheck // the source says what for
}

// forgetLater lets the reconcilers forget a deleted object: the controller may filter deletions.
func (p *Process) forgetLater(deleted any) {
	if unknown, ok := deleted.(toolscache.DeletedFinalStateUnknown); ok {
		deleted = unknown.Obj
	}

	obj, ok := deleted.(client.Object)
	if !ok {
		return
	}

	name, uid := client.ObjectKeyFromObject(obj), obj.GetUID()

	p.clock.AfterFunc(forgetAfter, func() {
		p.mu.Lock()
		defer p.mu.Unlock()

		for _, r := range p.reconcilers {
			r.forget(name, uid)
		}
	})
}

// Reconciler wraps a reconciler so that requests for objects of other processes are dropped. It gets the client of the manager and an empty object
// of the kind that the controller watches, in the form that it watches. Wrap each reconciler of the process that shares its objects.
//
// The inner reconciler is called for an object that does not exist only if it has run for the object. This costs the memory of a name, a uid, and a
// number for each object of the process, until ten minutes after the deletion of the object.
func (p *Process) Reconciler(c client.Client, obj client.Object, inner reconcile.Reconciler) reconcile.Reconciler {
	r := &reconciler{process: p, inner: inner, cache: withoutLiveReads(c), empty: obj, ran: map[types.NamespacedName]run{}}

	p.mu.Lock()
	defer p.mu.Unlock()

	p.reconcilers = append(p.reconcilers, r)

	return r
}

type reconciler struct {
	process *Process
	inner   reconcile.Reconciler
	cache   client.Reader
	empty   client.Object

	mu  sync.Mutex
	ran map[types.NamespacedName]run // the objects that the inner reconciler has run for
}

// run is what is remembered of an object.
type run struct {
	uid  types.UID
	hash uint64
}

// began is the key of the share in the context of a reconcile. What the reconcile lists follows this share to its end: a reconciler that counts the
// objects of a list must not miss some because they have changed their process since.
type began struct{}

// Reconcile implements reconcile.Reconciler. It reconciles an object that was deleted until the inner reconciler has no error and does not ask for
// another call.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var found run

	obj, _ := r.empty.DeepCopyObject().(client.Object)

	err := r.cache.Get(ctx, req.NamespacedName, obj)
	if err == nil {
		found.uid = obj.GetUID()
		found.hash, err = r.process.hash(obj)
	}

	exists := err == nil
	if err := client.IgnoreNotFound(err); err != nil {
		return reconcile.Result{}, fmt.Errorf("read %T %s: %w", obj, req.NamespacedName, err)
	}

	s := r.process.share()
	if !r.begin(req.NamespacedName, found, exists, s) {
		return reconcile.Result{}, nil // when the share changes, the source enqueues all objects of the process
	}

	result, err := r.inner.Reconcile(context.WithValue(ctx, began{}, s), req)
	if !exists && err == nil && result.IsZero() {
		r.forget(req.NamespacedName, "")
	}

	return result, err //nolint:wrapcheck // it is the controller's
}

// begin reports whether the inner reconciler may run, and takes note of it. It may not if the object belongs to another process, or if it does not exist
// and the inner reconciler has not run for it.
func (r *reconciler) begin(name types.NamespacedName, found run, exists bool, s share) bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	if !exists {
		found, exists = r.ran[name]
	}

	if !exists || !s.owns(found.hash) {
		delete(r.ran, name)

		return false
	}

	r.ran[name] = found

	return true
}

// forget forgets an object, if the uid is the given one or none is given.
func (r *reconciler) forget(name types.NamespacedName, uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if uid == "" || r.ran[name].uid == uid {
		delete(r.ran, name)
	}
}
