package engine

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

const (
	// namedAtOnce is how many shards one list names. A name has up to 63 characters, and the API server accepts at most 1 MB
	// of names.
	namedAtOnce = 1000
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

		err := l.e.list(ctx, l.e.at(l.gvr, sets.List(shards)), urgentHeld, func(s sight) { l.e.observe(ctx, s) })
		if ctx.Err() != nil {
			return
		}

		l.e.troubled(l.id, err)

		if err == nil {
			next.Reset()
			l.done()

			continue
		}

		l.e.listed(l.id) // when the list will succeed is unknown
		l.e.pause(ctx, next.Next())
		l.e.update(func(time.Time) { l.add(shards) })
	}
}

// done records that a list is complete, unless another one was requested meanwhile.
func (l *lister) done() {
	l.e.update(func(time.Time) {
		if l.pending.Len() == 0 {
			l.e.unlisted.Delete(l.id)
		}
	})
}

// at returns the scopes of the objects of a resource at these shards.
func (e *Engine) at(gvr schema.GroupVersionResource, shards []string) (scopes []feed.Scope) {
	for names := range slices.Chunk(shards, namedAtOnce) {
		scopes = append(scopes, feed.Scope{GVR: gvr, Selector: selector(e.Objects.ShardLabel(), "in", names)})
	}

	return scopes
}

// list lists the objects of some scopes, and passes each to see, which observes it. Objects that are out of place are held back
// for at most the given time; 0 holds nothing back.
func (e *Engine) list(ctx context.Context, scopes []feed.Scope, held time.Duration, see func(sight)) error {
	for _, scope := range scopes {
		h := e.hold(held)
		version, err := e.Objects.All(ctx, e.Clock, scope, func(o feed.Object) error {
			see(sight{object: o, held: h})

			return ctx.Err()
		})

		h.release(ctx)

		if err != nil {
			return err
		}

		e.reached(scope.GVR, version)
	}

	return nil
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
