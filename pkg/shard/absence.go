package shard

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// wrapped is a reconciler or handler that a shard has wrapped. It calls the inner function for absent objects only if nothing can
// bring them back while the function runs: the function reads the cache again, and would work on an object that no look preceded.
//
//	A1  The function is called for an absent object only if it has run for that object. An object that is handed over comes after
//	    the objects that follow it; their events lead here while it is still absent.
//	A2  If it has not run for the object in deletion, in the present stretch of the term, the API server must confirm that the object
//	    no longer exists: an object whose label somebody else has changed is absent, too, and so is one that was taken.
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
	ran      bool      // whether the function has run
	stretch  int       // the stretch of the term in which it ran last
	deletion bool      // whether the object was in deletion then
	told     bool      // whether the function was called for the absent object
	ended    bool      // whether ends has returned since
	waits    time.Time // since when the object waits for a controller that this shard does not see, or when this was last logged; zero: it does not
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

// call calls the function for an object that may be worked on.
func (w *wrapped) call(ctx context.Context, name types.NamespacedName, deletion bool, inner workFunc) (reconcile.Result, error) {
	stretch, err := w.shard.term.current()
	if err != nil {
		return later(err)
	}

	w.change(name, func(last *stay) { *last = stay{ran: true, stretch: stretch, deletion: deletion} })

	return inner(ctx)
}

// absent calls the function for an object that was deleted. The function is called until it returns no error, and does not request
// another call.
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

// last returns what is known of the stay of an object.
func (w *wrapped) last(name types.NamespacedName) stay {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.stays[name]
}

// change changes what is known of the stay of an object.
func (w *wrapped) change(name types.NamespacedName, fn func(*stay)) {
	w.mu.Lock()
	defer w.mu.Unlock()

	last := w.stays[name]
	fn(&last)
	w.stays[name] = last
}

// whereabouts returns what has become of an object that is not in the cache, as the API server knows it: absent if it does not exist,
// gone if it is not this shard's, or unclear if it is: the cache is behind, or has another selector in addition. The caller is inside the object.
func (s *Shard) whereabouts(ctx context.Context, k *kind, name types.NamespacedName) (verdict, error) {
	switch obj, err := k.live(ctx, name); {
	case err != nil:
		return unclear, err
	case obj == nil:
		return absent, nil
	case s.owns(obj):
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

// depart forgets an object that the cache shows as another shard's, or not at all. What the process holds for it is released when no
// worker is inside the object.
func (w *wrapped) depart(name types.NamespacedName) {
	if w.last(name).ran {
		w.shard.guard.depart(w.kind.key(name), "")
	} else {
		w.forget(name)
	}
}

// unseen logs from time to time that an object waits for a controller that this shard does not see.
func (w *wrapped) unseen(ctx context.Context, name types.NamespacedName, l link) {
	if l.controller == (objectKey{}) {
		return
	}

	now, waits := w.shard.term.clock.Now(), w.last(name).waits
	if !waits.IsZero() && now.Sub(waits) < longWait {
		return
	}

	w.change(name, func(last *stay) { last.waits = now })

	if !waits.IsZero() {
		log.FromContext(ctx).Info("Not reconciling the object, because it follows a controller that is not an object of this shard. "+
			"If the ring lists the controlled kind as a main resource, not as a controlled one, declare it as shard.Main",
			"kind", w.kind.gvk.Kind, "object", name,
			"controllerKind", l.controller.Kind, "controller", l.controller.NamespacedName, "controlledKind", l.kind)
	}
}
