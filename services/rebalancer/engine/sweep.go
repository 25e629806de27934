package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// sweepBackoff spaces out sweeps that fail, or that find objects which keep being out of place: 0.1 s to 30 s.
var sweepBackoff = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 10, Cap: 30 * time.Second}

// urgentFirst is how long a sweep waits for what is more urgent: some ten thousand moves.
const urgentFirst = 10 * time.Second

// sweepUntilClean sweeps until everything is in place, waits for the settle period and sweeps a last time: a replica of the
// assigner that learned late of the last change may have misplaced objects meanwhile. Then it ends; nothing is listed
// until there is another target.
func (e *Engine) sweepUntilClean(ctx context.Context, t *Target) {
	next := sweepBackoff
	last := -1

	e.awaitUrgent(ctx)

	for ctx.Err() == nil {
		moved, err := e.sweep(ctx, t)
		e.finishSweep(t, moved, err)

		if err == nil && moved == 0 {
			if e.isSettled() {
				return
			}

			next = sweepBackoff
			e.pause(ctx, e.Limits.Settle)

			continue
		}

		if err == nil && moved < last {
			next = sweepBackoff // there is progress
		}

		last = moved
		e.pause(ctx, next.Step())
	}
}

// awaitUrgent lets objects without an available shard go first: nobody works on them, and a sweep would keep the API server
// busy. It waits for urgentFirst at most, for there may always be another one.
func (e *Engine) awaitUrgent(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)

	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	wg.Go(func() {
		e.pause(ctx, urgentFirst)
		cancel()
	})

	e.state.await(ctx, func() bool { return !e.state.urgent() })
}

func (e *Engine) pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-e.Clock.After(d):
	}
}

func (e *Engine) isSettled() bool {
	e.state.mu.Lock()
	defer e.state.mu.Unlock()

	return e.state.sweep.settled
}

// finishSweep notes the result of a sweep, unless the target has changed meanwhile.
func (e *Engine) finishSweep(t *Target, moved int, err error) {
	e.state.update(func() {
		if !e.Target().same(t) {
			return
		}

		clean := err == nil && moved == 0 && len(e.state.draining) == 0
		e.state.sweep = sweepState{clean: clean, settled: clean && e.state.sweep.clean}
	})
}

// sweep looks at every labelled object once, hands those that are out of place to the workers, main objects first, and
// waits until they are dealt with. It returns how many were written to. A resource that cannot be listed does not keep it
// from the others.
func (e *Engine) sweep(ctx context.Context, t *Target) (moved int, err error) {
	var errs []error

	e.state.update(func() { e.state.sweep.acted = 0 })

	for _, all := range [][]resources.Resource{t.Set.Main(), t.Set.Controlled()} {
		for _, r := range all {
			err := e.sweepScope(ctx, t, r, objects.Scope{GVR: r.GVR, Selector: e.Objects.ShardLabel()})
			e.state.fail("labelled "+r.GroupResource().String(), ignoreEnd(ctx, err))

			if err != nil {
				errs = append(errs, err)
			}
		}

		e.state.await(ctx, func() bool {
			moved = e.state.sweep.acted
			return len(e.state.swept) == 0 && len(e.state.draining) == 0
		})
	}

	return moved, errors.Join(errs...)
}

// ignoreEnd keeps the end of the context from being reported as a failure.
func ignoreEnd(ctx context.Context, err error) error {
	if ended := ctx.Err() != nil; ended {
		err = nil
	}

	return err
}

func (e *Engine) sweepScope(ctx context.Context, t *Target, r resources.Resource, scope objects.Scope) error {
	_, role, _ := t.Set.Find(r.GroupResource())

	_, err := e.Objects.Pages(ctx, scope, func(page []objects.Object) error {
		for _, o := range page {
			switch out, err := e.isOutOfPlace(ctx, t, place{r, role}, o); {
			case err != nil:
				return err
			case out && e.grant(ctx, t, place{r, role}, o):
				e.state.update(func() { e.state.swept[o.ID] = struct{}{} })
				e.submit(ctx, o)
			}
		}

		return ctx.Err()
	})
	if t.Leaving[r.GroupResource()] {
		err = client.IgnoreNotFound(err) // the resource is gone, and its objects with it
	}

	return err
}

// isOutOfPlace says whether an object may have to be moved, without asking the API server: for a controlled object, whether
// it is elsewhere than the ring would have its owner.
func (e *Engine) isOutOfPlace(ctx context.Context, t *Target, p place, o objects.Object) (bool, error) {
	covered, err := e.covers(ctx, t, p.resource, o.Namespace)
	if err != nil {
		return false, err
	}

	k, _, ok := keyOf(t, p, o)
	if !ok || !covered {
		return true, nil
	}

	desired, ok := t.View.Owner(k)

	return ok && (o.Shard != desired || o.Draining), nil
}

// grant waits until the object may be drained, if it must be. It returns false if its shard does not acknowledge what it
// was asked before: then the object stays for a later sweep.
func (e *Engine) grant(ctx context.Context, t *Target, p place, o objects.Object) bool {
	if p.role != resources.Main || o.Draining || !t.View.Available(o.Shard) {
		return true
	}

	free, stuck := false, false

	if !e.state.await(ctx, func() bool {
		free, stuck = e.state.hasSlot(o.Shard, e.Limits)
		if free {
			e.state.grant(o.ID, o.Shard)
		}

		return free || stuck
	}) {
		return false
	}

	return free
}

// followOwners moves controlled objects after their owners have been handed over: it goes over the controlled objects of
// the shards that gave owners up, in the namespaces where they did. Much may move while it does so; then it goes again.
func (e *Engine) followOwners(ctx context.Context, t *Target) {
	for {
		news, ok := e.owners.next(ctx)
		if !ok {
			return
		}

		// More owners move right now; one pass serves many.
		e.pause(ctx, 20*time.Millisecond)
		news.add(e.owners.take())

		began := e.Clock.Now()

		for _, r := range t.Set.Controlled() {
			for _, scope := range news.scopes(e, r) {
				if err := e.sweepScope(ctx, t, r, scope); err != nil && ctx.Err() == nil {
					// The sweep will find what this pass has missed, and report the failure.
					e.Log.V(1).Info("cannot look for the objects of owners that moved", "resource", r.GroupResource().String(),
						"reason", err.Error())
				}
			}
		}

		e.pause(ctx, e.Clock.Since(began)) // at most half of the time goes into such passes
	}
}
