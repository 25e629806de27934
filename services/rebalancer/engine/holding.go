package engine

import (
	"context"
	"time"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/placement"
)

const (
	// heldAtMost is how many objects a list holds back, fewer than maxActive: 7 MB.
	heldAtMost = 15_000
	// urgentHeld and calmHeld are how long objects are held back: objects that no shard works on, and objects that their
	// shard continues to work on.
	urgentHeld = 5 * time.Second
	calmHeld   = 30 * time.Second
)

// holding holds back the misplaced objects that a list finds until the list is complete, but no more than heldAtMost, and not
// for long. Without it, the API server would end the list, because it keeps only a limited number of writes for a watcher, and
// every move is a write. The list would then start again in pages. Only one goroutine may use a holding. Create it with
// [Engine.hold].
type holding struct {
	e       *Engine
	lookup  placement.Lookup
	until   time.Time
	begun   bool
	objects []feed.Object
	over    bool
}

// hold returns a holding for a list that begins now. It holds objects back for at most the given time; 0 holds nothing back.
// It also holds nothing back if the ring has few objects, because such a list is short, and cheap to repeat.
func (e *Engine) hold(lookup placement.Lookup, atMost time.Duration) *holding {
	return &holding{e: e, lookup: lookup, until: e.Clock.Now().Add(atMost), over: atMost == 0 || e.few()}
}

// list lists the objects of a scope and passes each to take, which observes it. It returns the resource version of the list.
func (h *holding) list(ctx context.Context, scope feed.Scope, take func(sight)) (resourceVersion string, err error) {
	defer h.release(ctx)

	return h.e.Objects.All(ctx, h.e.Clock, scope, func(o feed.Object) error {
		take(sight{object: o, held: h})
		return ctx.Err()
	})
}

// keep reports whether the object is held back. The first object is not, so that moves begin immediately.
func (h *holding) keep(ctx context.Context, o feed.Object) bool {
	switch {
	case h == nil || h.over:
		return false
	case !h.begun:
		h.begun = true
		return false
	case len(h.objects) == heldAtMost || h.e.Clock.Now().After(h.until):
		h.release(ctx)
		return false
	}

	h.objects = append(h.objects, o)

	return true
}

// release observes all objects that were held back. From then on, nothing is held back.
func (h *holding) release(ctx context.Context) {
	h.over = true

	for _, o := range h.objects {
		h.e.observe(ctx, h.lookup, o)
	}

	h.objects = nil
}
