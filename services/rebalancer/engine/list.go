package engine

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

const (
	// heldAtMost is how many objects a list holds back, fewer than maxActive: 7 MB.
	heldAtMost = 15_000
	// urgentHeld and calmHeld are how long objects are held back: objects that no shard works on, and objects that their
	// shard continues to work on.
	urgentHeld = 5 * time.Second
	calmHeld   = 30 * time.Second
)

// lister lists the objects of one resource that lost shards have left behind. It completes every list, whatever happens to the
// ring meanwhile: otherwise the next change would interrupt the list again.
type lister struct {
	e   *Engine
	id  sourceID
	gvr schema.GroupVersionResource
	// pending are the shards whose objects have to be listed. The lock of the engine protects it.
	pending sets.Set[string]
	wake    chan struct{}
}

// add requests a list of the objects of more shards. The lock must be held.
func (l *lister) add(shards sets.Set[string]) {
	l.pending = l.pending.Union(shards)
	notify(l.wake)
}

func (l *lister) run(ctx context.Context) {
	next := feed.Attempts(l.id.String())

	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}

		var shards sets.Set[string]

		l.e.update(func(time.Time) { shards, l.pending = l.pending, nil })

		if shards.Len() == 0 {
			continue // they were taken with those of the request before
		}

		scope := feed.Scope{GVR: l.gvr, Selector: selector(l.e.Objects.ShardLabel(), "in", sets.List(shards))}

		err := l.e.list(ctx, scope, urgentHeld, func(s sight) { l.e.observe(ctx, s) })
		if ctx.Err() != nil {
			return
		}

		l.e.troubled(l.id, err)
		l.e.update(func(time.Time) {
			if err != nil || l.pending.Len() == 0 { // when a list that fails will succeed is unknown
				l.e.unlisted.Delete(l.id)
			}
		})

		if err == nil {
			next.Reset()
			continue
		}

		l.e.pause(ctx, next.Next())
		l.e.update(func(time.Time) { l.add(shards) })
	}
}

// list lists the objects of a scope, and passes each to see, which observes it. Objects that are out of place are held back for
// at most the given time; 0 holds nothing back.
func (e *Engine) list(ctx context.Context, scope feed.Scope, held time.Duration, see func(sight)) error {
	h := e.hold(held)
	defer h.release(ctx)

	version, err := e.Objects.All(ctx, e.Clock, scope, func(o feed.Object) error {
		see(sight{object: o, held: h})

		return ctx.Err()
	})
	if err == nil {
		e.reached(scope.GVR, version)
	}

	return err
}

// holding holds back the misplaced objects that a list finds until the list is complete, but no more than heldAtMost, and not
// for long. Without it, the API server would end the list, because it keeps only a limited number of writes for a watcher, and
// every move is a write. The list would then start again in pages. Only one goroutine may use a holding. Create it with
// [Engine.hold].
type holding struct {
	e       *Engine
	until   time.Time
	objects []feed.Object
}

// hold returns a holding for a list that begins now. It holds objects back for at most the given time. It holds nothing back
// if the ring has few objects, because such a list is short, and cheap to repeat.
func (e *Engine) hold(atMost time.Duration) *holding {
	h := &holding{e: e}
	if !e.few() {
		h.until = e.Clock.Now().Add(atMost)
	}

	return h
}

// keep reports whether the object is held back.
func (h *holding) keep(ctx context.Context, o feed.Object) bool {
	if h == nil {
		return false
	}

	if len(h.objects) == heldAtMost || !h.e.Clock.Now().Before(h.until) {
		h.release(ctx)

		return false
	}

	h.objects = append(h.objects, o)

	return true
}

// release observes all objects that were held back. From then on, nothing is held back.
func (h *holding) release(ctx context.Context) {
	objects := h.objects
	h.objects, h.until = nil, time.Time{}

	for _, o := range objects {
		h.e.observe(ctx, sight{object: o})
	}
}
