package shard

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// wrapped is a reconciler or handler that a shard has wrapped. It calls the inner function for absent objects only if nothing can
// bring them back while the function runs: the function reads the cache again, and would work on an object that no look preceded.
//
//	A1  The function is called for an absent object only if it has run for that object. An object that is handed over comes after
//	    the objects that follow it; their events lead here while it is still absent.
//	A2  If it ran before the present stretch of the term, the object may have been taken, so the API server must confirm that it
//	    no longer exists. In the same stretch, no object leaves without an acknowledgement, after which it counts as gone.
//
// This costs the memory of one name per object. A name is forgotten when the object has left the shard.
type wrapped struct {
	shard *Shard
	kind  *kind

	mu  sync.Mutex
	ran map[types.NamespacedName]int // the stretch of the term in which the function ran last
	// waits are the objects whose controllers this shard does not see, and since when.
	waits map[types.NamespacedName]time.Time
}

func (s *Shard) wrap(k *kind) *wrapped {
	return &wrapped{shard: s, kind: k, ran: map[types.NamespacedName]int{}, waits: map[types.NamespacedName]time.Time{}}
}

// ofShard marks reconcilers that a shard has wrapped.
func (w *wrapped) ofShard() *Shard { return w.shard }

// call calls the function for an object that may be worked on.
func (w *wrapped) call(ctx context.Context, name types.NamespacedName, inner workFunc) (reconcile.Result, error) {
	stretch, err := w.shard.term.current()
	if err != nil {
		return later(err)
	}

	w.mu.Lock()
	delete(w.waits, name)
	w.ran[name] = stretch
	w.mu.Unlock()

	return inner(ctx)
}

// absent calls the function for an object that was deleted. The function is called until it returns no error, and does not request
// another call.
func (w *wrapped) absent(ctx context.Context, name types.NamespacedName, inner workFunc) (reconcile.Result, error) {
	stretch, err := w.shard.term.current()
	if err != nil {
		return later(err)
	}

	w.mu.Lock()
	since, ran := w.ran[name]
	delete(w.waits, name)
	w.mu.Unlock()

	switch {
	case !ran:
		return reconcile.Result{}, nil
	case since != stretch:
		_, err := w.kind.live(ctx, name)
		if err == nil {
			w.forget(name)
			return reconcile.Result{}, nil
		}

		if !apierrors.IsNotFound(err) {
			return reconcile.Result{}, fmt.Errorf("determine whether %s %s was deleted: %w", w.kind.gvk.Kind, name, err)
		}
	}

	result, err := inner(ctx)
	if err == nil && result.IsZero() {
		w.forget(name)
	}

	return result, err
}

func (w *wrapped) forget(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()

	delete(w.ran, name)
	delete(w.waits, name)
}

// unseen logs from time to time that an object waits for a controller that this shard does not see.
func (w *wrapped) unseen(ctx context.Context, name types.NamespacedName, l link) {
	if l.controller == (objectKey{}) {
		return
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	now := w.shard.term.clock.Now()

	switch since, waits := w.waits[name]; {
	case !waits:
		w.waits[name] = now
	case now.Sub(since) >= longWait:
		w.waits[name] = now
		log.FromContext(ctx).Info("Not reconciling the object, because it follows a controller that is not an object of this shard. "+
			"If the ring lists the controlled kind as a main resource, not as a controlled one, declare it with Shard.Main",
			"kind", w.kind.gvk.Kind, "object", name,
			"controllerKind", l.controller.Kind, "controller", l.controller.NamespacedName, "controlledKind", l.kind)
	}
}
