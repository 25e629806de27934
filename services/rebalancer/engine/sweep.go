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

// sweepUntilClean sweeps until nothing is left to do, waits for the settle period and sweeps a last time, then over all
// objects: a replica of the assigner that learned late of the last change may have misplaced some meanwhile. When that finds
// nothing, it ends; nothing is listed until there is another target.
func (e *Engine) sweepUntilClean(ctx context.Context, t *Target) {
	next := sweepBackoff
	last := -1
	all := false

	for ctx.Err() == nil {
		e.awaitUrgent(ctx)

		moved, err := e.sweep(ctx, t, all)

		outcome := e.finishSweep(t, all, moved, err)
		if outcome == sweepSettled {
			return
		}

		if outcome == sweepClean && moved == 0 || err == nil && moved < last {
			next = sweepBackoff // there is progress
		}

		pause := next.Step()
		if outcome == sweepClean {
			all, pause = true, max(pause, e.Limits.Settle)
		}

		last = moved
		e.pause(ctx, pause)
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

// outcome is what a sweep came to.
type outcome int

const (
	// sweepUnclean has left something, or could not be finished.
	sweepUnclean outcome = iota
	// sweepClean has dealt with all that it found.
	sweepClean
	// sweepSettled has looked at all objects, after another one that was clean, and found nothing.
	sweepSettled
)

// finishSweep notes the result of a sweep, unless the target has changed meanwhile.
func (e *Engine) finishSweep(t *Target, all bool, moved int, err error) (o outcome) {
	e.state.update(func() {
		if !e.Target().same(t) {
			return
		}

		switch s := &e.state.sweep; {
		case err != nil || s.left > 0 || len(e.state.draining) > 0:
			*s, o = sweepState{}, sweepUnclean
		case s.clean && all && moved == 0:
			*s, o = sweepState{clean: true, settled: true}, sweepSettled
			e.state.suspects.clear()
		default:
			*s, o = sweepState{clean: true}, sweepClean
		}
	})

	return o
}

// sweep looks once at every labelled object, or at every one of suspicious shards, hands those that are out of place to the
// workers, main objects first, and waits until they are dealt with. It returns how many were written to. A resource that
// cannot be listed does not keep it from the others.
func (e *Engine) sweep(ctx context.Context, t *Target, all bool) (moved int, err error) {
	var (
		errs    []error
		suspect []string
	)

	e.state.update(func() {
		e.state.sweep.acted, e.state.sweep.left = 0, 0

		if !all {
			suspect, all = e.state.suspects.among(t.View)
		}
	})

	labelled := e.Objects.ShardLabel()
	if !all {
		labelled = selector(labelled, "in", suspect)
	}

	for _, level := range [][]resources.Resource{t.Set.Main(), t.Set.Controlled()} {
		for _, r := range level {
			if !all && len(suspect) == 0 {
				break
			}

			err := e.sweepScope(ctx, t, r, objects.Scope{GVR: r.GVR, Selector: labelled})
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
	p := place{r, role}

	_, err := e.Objects.Pages(ctx, scope, func(page []objects.Object) error {
		covers := e.remembered(t, r)

		for _, o := range page {
			covered, err := covers(ctx, o.Namespace)

			switch {
			case err != nil:
				return err
			case !isOutOfPlace(t, p, o, covered):
			case e.grant(ctx, t, p, o):
				e.state.update(func() { e.state.swept[o.ID] = struct{}{} })
				e.submit(ctx, o)
			default:
				e.state.update(func() { e.state.sweep.left++ })
			}
		}

		return ctx.Err()
	})
	if t.Leaving[r.GroupResource()] {
		err = client.IgnoreNotFound(err) // the resource is gone, and its objects with it
	}

	return err
}

// remembered asks about each namespace once: a page has many objects, and few namespaces.
func (e *Engine) remembered(t *Target, r resources.Resource) func(ctx context.Context, namespace string) (bool, error) {
	known := map[string]bool{}

	return func(ctx context.Context, namespace string) (bool, error) {
		if covered, ok := known[namespace]; ok {
			return covered, nil
		}

		covered, err := e.covers(ctx, t, r, namespace)
		if err == nil {
			known[namespace] = covered
		}

		return covered, err
	}
}

// isOutOfPlace says whether an object may have to be moved, without asking the API server: for a controlled object, whether
// it is elsewhere than the ring would have its owner. Covered says whether the ring covers its namespace.
func isOutOfPlace(t *Target, p place, o objects.Object, covered bool) bool {
	k, _, ok := keyOf(t, p, o)
	if !ok || !covered {
		return true
	}

	desired, ok := t.View.Owner(k)

	return ok && (o.Shard != desired || o.Draining)
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
