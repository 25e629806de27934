package shard

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// drainWorkers is how many objects are released at once.
	drainWorkers = 8
	// firstLook and lastLook limit the time between two looks at an object that could not be released; it doubles in between.
	firstLook, lastLook = 50 * time.Millisecond, 10 * time.Second
	// forgetAfter is how long an object is absent before it is forgotten, if no worker was told. A controller with a long queue may still be told.
	forgetAfter = 10 * time.Minute
)

// drains releases objects that nobody works on as soon as an informer shows the drain, and forgets objects that are deleted. The
// workers of controllers may be busy for long, and the events may be filtered before they reach them. It looks at objects like any
// worker, so the guard decides. If workers are inside the object, the last of them acknowledges.
type drains struct {
	shard *Shard

	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[look] // nil before the term
}

// look is a reason to look at an object.
type look struct {
	objectKey
	// forgotten is true if the object was deleted some time ago, and is to be forgotten.
	forgotten bool
}

// watch looks at the objects of an informer. Objects of other shards, and kinds that nobody works on, cost nothing.
func (d *drains) watch(gk schema.GroupKind, informer toolscache.SharedIndexInformer) {
	d.shard.cachedAnew(gk)

	// An informer that has stopped has no events.
	_, _ = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { d.changed(gk, obj) },
		UpdateFunc: func(_, obj any) {
			d.changed(gk, obj)
			d.shard.releasePoison(gk, obj)
		},
		DeleteFunc: func(obj any) { d.deleted(gk, obj) },
	})
}

func (d *drains) changed(gk schema.GroupKind, obj any) {
	if o, err := meta.Accessor(obj); err == nil && d.shard.draining(o) {
		if q, l := d.look(gk, obj); q != nil {
			q.Add(l)
		}
	}
}

func (d *drains) deleted(gk schema.GroupKind, obj any) {
	q, l := d.look(gk, obj)
	if q == nil {
		return
	}

	d.shard.handover.forget(l.objectKey)
	d.shard.poison.forget(l.objectKey)

	if d.holds(l.objectKey) {
		q.Add(l) // it may have been given to another shard
	}

	l.forgotten = true
	q.AddAfter(l, forgetAfter)
}

// look returns the look at an object of an informer, and the queue for it, if there is one yet.
func (d *drains) look(gk schema.GroupKind, obj any) (workqueue.TypedRateLimitingInterface[look], look) {
	name, err := toolscache.DeletionHandlingObjectToName(obj)
	if err != nil || d.shard.kind(gk, name.Namespace) == nil {
		return nil, look{}
	}

	return d.queued(), look{objectKey: objectKey{gk, name.AsNamespacedName()}}
}

// holds reports whether the process may hold something for the object.
func (d *drains) holds(key objectKey) bool {
	return slices.ContainsFunc(d.shard.wrappersOf(key), func(w *wrapped) bool { return w.holds(key.NamespacedName) })
}

func (d *drains) queued() workqueue.TypedRateLimitingInterface[look] {
	d.mu.Lock()
	defer d.mu.Unlock()

	return d.queue
}

// again looks again at objects that a worker could not release.
func (d *drains) again(keys ...objectKey) {
	if q := d.queued(); q != nil {
		for _, key := range keys {
			q.AddRateLimited(look{objectKey: key})
		}
	}
}

// run releases objects until the term ends. Then it ends what the process holds for its objects, and reports whether it has succeeded.
func (d *drains) run(ctx context.Context) bool {
	log := klog.FromContext(ctx).WithValues("shard", d.shard.Name())
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[look](firstLook, lastLook))

	d.mu.Lock()
	d.queue = queue
	d.mu.Unlock()

	// Events before the term have not led here.
	for _, k := range d.shard.allKinds() {
		for _, c := range d.shard.stores.everywhere(k.gvk.GroupKind()) {
			for _, obj := range c.List() {
				d.changed(k.gvk.GroupKind(), obj)
			}
		}
	}

	var workers sync.WaitGroup
	for range drainWorkers {
		workers.Go(func() {
			for d.next(logr.NewContext(ctx, log), queue) {
			}
		})
	}

	<-ctx.Done()
	queue.ShutDown()
	workers.Wait()

	err := d.shard.releaseAll(logr.NewContext(ctx, log))
	if err != nil {
		log.Error(err, "Could not release what the process holds for its objects. The Lease is not released: the process must end")
	}

	return err == nil
}

func (d *drains) next(ctx context.Context, queue workqueue.TypedRateLimitingInterface[look]) bool {
	item, stopped := queue.Get()
	if stopped {
		return false
	}
	defer queue.Done(item)

	switch result, again, err := d.visit(ctx, item); {
	case result.RequeueAfter > 0:
		queue.AddAfter(item, result.RequeueAfter)
	case err != nil || again:
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Could not release an object yet", "kind", item.Kind, "object", item.NamespacedName)
		}

		queue.AddRateLimited(item)
	default:
		queue.Forget(item)
	}

	return true
}

// visit looks at an object, and releases it if it is to be released. It returns when, or whether, it must look again.
func (d *drains) visit(ctx context.Context, item look) (wait reconcile.Result, again bool, err error) {
	ctx, end, err := d.shard.term.begin(ctx)
	if err != nil {
		wait, err = later(err)
		return wait, false, err
	}
	defer end()

	v := &visit{shard: d.shard}
	defer func() {
		_, err = v.leave(context.WithoutCancel(ctx), reconcile.Result{}, err)
		again = again || v.pending
	}()

	k := d.shard.kind(item.GroupKind, item.Namespace)
	if item.forgotten {
		wait.RequeueAfter, err = v.forget(ctx, k, item.NamespacedName)
		return wait, false, err
	}

	_, may, err := v.see(ctx, k, item.NamespacedName)
	switch {
	case err != nil:
		wait, err = later(err)
	case may == run:
		d.shard.wake(item.objectKey)
	case may == absent && d.holds(item.objectKey):
		may, err = d.shard.whereabouts(ctx, k, item.NamespacedName)
	case may == foreign || may == gone:
		d.shard.guard.depart(item.objectKey, "")
	}

	return wait, may == unclear, err
}

// forget lets an object be forgotten that is still not in the cache. It returns when to try again, because a function that was told of the
// deletion has not finished.
func (v *visit) forget(ctx context.Context, k *kind, name types.NamespacedName) (time.Duration, error) {
	key := k.key(name)
	v.into(key)

	obj, err := k.read(ctx, name)
	if err != nil || obj != nil {
		return 0, err
	}

	for _, w := range v.shard.wrappersOf(key) {
		if w.last(name).told {
			return forgetAfter, nil
		}
	}

	v.shard.guard.depart(key, "")

	return 0, nil
}
