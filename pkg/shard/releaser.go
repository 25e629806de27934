package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Releaser is implemented by a reconciler that keeps something for an object between reconciles, such as goroutines, connections,
// temporary files, or gauges. [Shard.Reconciler] finds the method on the reconciler that it wraps.
//
// Release ends all of this for one object. The shard calls it once for each object that the reconciler has run for, when the object's
// stay in the shard ends, and waits for it:
//
//   - before the shard acknowledges a drain of the object
//   - when somebody else has changed the label of the object
//   - after the reconciler was told of the deletion of the object, or some minutes later if it was not told
//   - for all objects, when the Lease is lost, and before it is released
//
// Release never runs while a reconciler works on the object. If it returns an error, the shard logs it, and calls it again after a
// while; meanwhile, it does not acknowledge the drain, or keeps the Lease. If the drain is withdrawn after Release, the object is reconciled
// again; reconciles must therefore start again what Release has ended.
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

// forget forgets an object that is no longer this shard's.
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

// holds reports whether the process may hold something for the object.
func (w *wrapped) holds(name types.NamespacedName) bool {
	last := w.last(name)

	return w.ends != nil && last.ran && !last.ended
}

// releaseAll ends what the process holds for all objects, after the term. If it fails, the process must end before another one has the
// objects.
func (s *Shard) releaseAll(ctx context.Context) error {
	// This is less than what T3 leaves when the Lease is lost.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), (s.options.LeaseDuration-s.options.RenewDeadline)*4/5) //nolint:mnd // see above
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
			_, errs[i] = v.leave(ctx, reconcile.Result{}, nil) // a worker that is still inside releases the object when it leaves
		})

		select {
		case <-ctx.Done():
			i := max(0, slices.IndexFunc(errs, func(err error) bool { return err != nil }))
			return fmt.Errorf("%d objects are not released, or still worked on: %w", len(held), cmp.Or(errs[i], context.Cause(ctx)))
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

// held returns the objects that the process may hold something for.
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
