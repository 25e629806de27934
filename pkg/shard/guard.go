package shard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// rememberedAcknowledgements limits how many objects that left the shard are remembered, so that their disappearance
// from the cache does not count as a deletion. It is far more than the shard can acknowledge before a cache catches up.
const rememberedAcknowledgements = 1 << 14

// guard tracks which objects the workers of this process are inside of, and which objects are being released.
//
//	G1  A drain is acknowledged only while no worker is inside the object.
//	G2  After any worker has seen the drain, no worker starts until a newer version shows that the drain was withdrawn.
//	G3  After the drain is acknowledged, no worker starts until a version that is not older than the acknowledgement
//	    shows that the object belongs to this shard again. If the object is absent, it does not count as deleted.
//	G4  If nobody knows whether the drain is acknowledged, because the answer was lost, no worker starts, and neither
//	    absence nor a cached version counts, until a live read has told. As long as the drain is pending, absence does
//	    not count either.
//
// A worker that has begun enters each object that it may touch, judges the cached state of the object, and leaves. It
// enters before it reads, so that no acknowledgement happens in between. The last worker to leave acknowledges. If the
// worker that saw the drain waited instead, it would block a worker for as long as another controller works.
type guard struct {
	mu      sync.Mutex
	objects map[objectKey]*object
	// departed are the objects that were acknowledged last.
	departed *lru.Cache
	seen     int // how many drains there were
	clock    clock.PassiveClock
}

type objectKey struct {
	schema.GroupKind
	types.NamespacedName
}

type object struct {
	inside        int
	drain         drain     // the newest that was seen; zero: none
	since         time.Time // when the first one was seen
	left          bool      // the object has left without a drain, and what the process holds for it is to be released
	acknowledging bool
	acknowledged  string // version in which it was released; empty: it was not
}

type drain struct {
	version string // version in which the object carries the drain label
	next    string // the next shard; empty: the assigner chooses when the labels are gone
	unknown bool   // the answer to the acknowledgement was lost
}

// view is the state of an object in the cache.
type view struct {
	version  string // resourceVersion; empty: not in the cache
	owned    bool   // carries the label of this shard
	draining bool   // carries the drain label
	next     string // the shard that the drain label names; empty: none
}

// verdict is what a worker may do about an object that it is inside of.
type verdict int

const (
	run     verdict = iota
	absent          // not in the cache, and the shard has not released it
	gone            // not in the cache because it was released
	foreign         // belongs to another shard
	drained         // to be released as soon as no worker is inside
	unclear         // the cache is behind, or an acknowledgement is in flight; check again
)

func newGuard() *guard {
	g := &guard{objects: map[objectKey]*object{}, clock: clock.RealClock{}}
	g.departed = lru.NewWithEvictionFunc(rememberedAcknowledgements, func(oldest lru.Key, _ any) {
		key, _ := oldest.(objectKey)
		if o := g.objects[key]; o != nil {
			o.acknowledged = ""
			g.tidy(key, o)
		}
	})

	return g
}

// enter puts a worker inside the object. The worker may do nothing to the object until judge returns run.
func (g *guard) enter(key objectKey) {
	g.mu.Lock()
	defer g.mu.Unlock()

	o := g.objects[key]
	if o == nil {
		o = &object{}
		g.objects[key] = o
	}
	o.inside++
}

// judge returns what a worker that is inside the object may do, based on what it has read since it entered.
func (g *guard) judge(key objectKey, v view) verdict {
	g.mu.Lock()
	defer g.mu.Unlock()

	o := g.objects[key]
	defer g.note(o)

	return o.judge(v)
}

func (o *object) judge(v view) verdict {
	if o.drain.unknown {
		return unclear
	}

	if v.version == "" {
		return o.judgeAbsence()
	}

	// If versions are not numbers, the cached one counts as current, and only preconditions protect the object.
	if notOlder(v.version, o.acknowledged) == behind || notOlder(v.version, o.drain.version) == behind {
		return unclear
	}

	if !v.owned {
		o.drain = drain{}

		return foreign
	}

	o.acknowledged, o.left = "", false
	if v.draining {
		o.drain = drain{version: v.version, next: v.next}

		return drained
	}

	o.drain = drain{}
	if o.acknowledging {
		return unclear
	}

	return run
}

func (o *object) judgeAbsence() verdict {
	if o.acknowledging || o.drain != (drain{}) {
		// The cache may show the acknowledgement before its answer arrives. The answer tells.
		return unclear
	}

	if o.acknowledged != "" {
		return gone
	}

	return absent
}

// depart records that the object has left the shard without a drain, or is forgotten. If a live read has told, the
// version is that of the object. The caller is inside the object.
func (g *guard) depart(key objectKey, version string) {
	g.mu.Lock()
	defer g.mu.Unlock()

	o := g.objects[key]

	o.left = true
	if version != "" {
		o.acknowledged = version
		g.departed.Add(key, nil)
	}
}

// leave takes a worker out of the object. If the object is to be released and this worker was the last one inside,
// leave returns the drain: the caller must try to release the object, and then settle. If it has left already, the
// drain is zero.
func (g *guard) leave(key objectKey) (asked drain, acknowledge bool) {
	g.mu.Lock()
	defer g.mu.Unlock()

	o := g.objects[key]

	o.inside--
	if o.inside == 0 && !o.acknowledging && (o.drain != drain{} || o.left) {
		o.acknowledging = true

		return o.drain, true
	}
	g.tidy(key, o)

	return drain{}, false
}

// outcome is the result of an attempt to acknowledge.
type outcome struct {
	version string // version in which the object was released; empty: it was not
	deleted bool   // the object no longer existed
	left    bool   // the object had left already
	unknown bool   // the answer was lost, and nobody has read the object since
}

func (g *guard) settle(key objectKey, result outcome) {
	g.mu.Lock()
	defer g.mu.Unlock()

	o := g.objects[key]

	o.acknowledging, o.drain.unknown = false, result.unknown
	if result.deleted {
		o.drain = drain{}
	}

	if result.left {
		o.left = false
	}

	if result.version != "" {
		o.drain, o.left, o.acknowledged = drain{}, false, result.version
		g.departed.Add(key, nil)
	}
	g.note(o)
	g.tidy(key, o)
}

func (g *guard) draining() bool { return g.pending().waiting > 0 }

func (g *guard) note(o *object) {
	switch is := o.drain != (drain{}); {
	case is && o.since.IsZero():
		o.since = g.clock.Now()
		g.seen++
	case !is:
		o.since = time.Time{}
	}
}

type pending struct {
	waiting, seen int // seen counts also those that were
	oldest        objectKey
	since         time.Time
}

func (g *guard) pending() pending {
	g.mu.Lock()
	defer g.mu.Unlock()

	p := pending{seen: g.seen}

	for key, o := range g.objects {
		if o.since.IsZero() {
			continue
		}

		if p.waiting++; p.since.IsZero() || o.since.Before(p.since) {
			p.oldest, p.since = key, o.since
		}
	}

	return p
}

func (g *guard) tidy(key objectKey, o *object) {
	if *o == (object{}) {
		delete(g.objects, key)
	}
}

const acknowledgeTimeout = 10 * time.Second

// acknowledge releases an object, and reports whether nothing remains to be done. guard.leave has chosen the caller.
// First, what the process holds for the object ends ([Releaser]). Then one patch of exactly the version that was
// drained removes the labels, or sets the next shard. A conflict means that the object has changed since. The context
// is not that of a reconcile, whose end must not break this off. The end of the term does.
func (s *Shard) acknowledge(ctx context.Context, key objectKey, asked drain) (done bool, err error) {
	result := outcome{unknown: asked.unknown}
	// Settle even if the patch panics: an object must not be stuck forever.
	defer func() { s.guard.settle(key, result) }()

	if err := s.release(ctx, key); err != nil {
		return false, err
	}

	if asked == (drain{}) {
		result.left = true
		s.forget(key)

		return true, nil
	}

	ctx, end, err := s.term.begin(ctx)
	if err != nil {
		return false, err
	}
	defer end()

	k := s.kind(key.GroupKind, key.Namespace)
	if !asked.unknown {
		result, err = s.sendRelease(ctx, k, key, asked)
	}

	if result.unknown {
		result, err = s.afterwards(ctx, k, key, err)
	}

	if err != nil {
		return false, fmt.Errorf("acknowledge the drain of %s %s: %w", k.gvk.Kind, key.NamespacedName, err)
	}

	if result.version == "" {
		return false, nil
	}

	s.forget(key)
	s.released.Add(1)
	log.FromContext(ctx).Info("Acknowledged drain", "drainedKind", k.gvk.Kind, "drainedObject", key.NamespacedName)

	return true, nil
}

// sendRelease sends the patch. The outcome is unknown unless the API server has certainly applied or refused it.
func (s *Shard) sendRelease(ctx context.Context, k *kind, key objectKey, asked drain) (outcome, error) {
	var next any // nil: the API server asks an assigner
	if asked.next != "" && asked.next != s.Name() {
		next = asked.next
	}

	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": asked.version,
		"labels":          map[string]any{s.shardKey: next, s.drainKey: nil},
	}})
	if err != nil {
		return outcome{}, err //nolint:wrapcheck // the caller adds the object
	}

	ctx, cancel := context.WithTimeout(ctx, acknowledgeTimeout)
	defer cancel()

	version, err := k.patch(ctx, key.NamespacedName, patch)
	if apierrors.IsNotFound(err) {
		return outcome{deleted: true}, nil
	}

	return outcome{version: version, unknown: err != nil && !refused(err)}, err
}

// refused reports whether the API server has certainly not applied a request. A conflict may be the answer to the
// second attempt of a client that got none to the first.
func refused(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return false
	}

	code := int(status.Status().Code)

	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusConflict &&
		code != http.StatusTooManyRequests
}

// afterwards reads from the API server what has become of an object, and returns the error that remains.
func (s *Shard) afterwards(ctx context.Context, k *kind, key objectKey, failure error) (outcome, error) {
	live, err := k.live(ctx, key.NamespacedName)

	switch {
	case err != nil:
		// After a conflict, the drained version is certainly over. The next version or the next attempt tells the rest.
		return outcome{unknown: !apierrors.IsConflict(failure)}, errors.Join(failure, err)
	case live == nil:
		return outcome{deleted: true}, nil
	case s.Owns(live):
		return outcome{}, failure
	default:
		return outcome{version: live.GetResourceVersion()}, nil
	}
}

const (
	// drainWorkers is how many objects are released at once.
	drainWorkers = 8
	// firstLook and lastLook limit the time between looks at an object that could not be released; it doubles in between.
	firstLook, lastLook = 50 * time.Millisecond, 10 * time.Second
	// forgetAfter is how long an object is absent before it is forgotten, if no worker was told: queues may be long.
	forgetAfter = 10 * time.Minute
)

// drains releases objects that nobody works on as soon as an informer shows the drain, and forgets objects that are
// deleted. The workers of controllers may be busy for long, and the events may be filtered before they reach them. It
// looks at objects like any worker. If others are inside the object, the last of them acknowledges.
type drains struct {
	shard *Shard

	queue atomic.Pointer[drainQueue] // nil before the term
}

type drainQueue = workqueue.TypedRateLimitingInterface[look]

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

func (d *drains) look(gk schema.GroupKind, obj any) (drainQueue, look) {
	name, err := toolscache.DeletionHandlingObjectToName(obj)
	if err != nil || d.shard.kind(gk, name.Namespace) == nil {
		return nil, look{}
	}

	return d.queued(), look{objectKey: objectKey{gk, name.AsNamespacedName()}}
}

func (d *drains) holds(key objectKey) bool {
	return slices.ContainsFunc(d.shard.wrappersOf(key), func(w *wrapped) bool { return w.holds(key.NamespacedName) })
}

func (d *drains) queued() drainQueue { return ptr.Deref(d.queue.Load(), nil) }

// again looks again at objects that a worker could not release.
func (d *drains) again(keys ...objectKey) {
	if q := d.queued(); q != nil {
		for _, key := range keys {
			q.AddRateLimited(look{objectKey: key})
		}
	}
}

// run releases objects until the term ends. Then it ends what the process holds, and reports whether it has succeeded.
func (d *drains) run(ctx context.Context) bool {
	log := klog.FromContext(ctx).WithValues("shard", d.shard.Name())
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[look](firstLook,
		lastLook))

	d.queue.Store(&queue)

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
		log.Error(err, "Could not release what the process holds for its objects. The Lease is not released: the process "+
			"must end")
	}

	return err == nil
}

func (d *drains) next(ctx context.Context, queue drainQueue) bool {
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

// forget lets an object be forgotten that is still not in the cache. It returns when to try again, because a function
// that was told of the deletion has not finished.
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
