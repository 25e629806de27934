package engine

import (
	"context"
	"time"

	"github.com/clusterring/clusterring/services/rebalancer/objects"
	"github.com/clusterring/clusterring/services/rebalancer/placement"
)

const (
	// heldAtMost is how many objects a list keeps back, fewer than maxActive: 7 MB.
	heldAtMost = 15_000
	// urgentHeld and calmHeld are how long objects are kept back that nobody works on, and those that their shard goes on working on.
	urgentHeld = 5 * time.Second
	calmHeld   = 30 * time.Second
)

// holding keeps back what a list finds out of place until the list is over, but no more than heldAtMost, and not for long. The writes that move
// objects would have the API server end the list, for it keeps no more than some of them for one watcher; then the list begins anew in pages. One
// goroutine uses it. Create it with [Engine.hold].
type holding struct {
	e       *Engine
	world   placement.World
	until   time.Time
	begun   bool
	objects []objects.Object
	over    bool
}

// hold returns a holding for a list that begins now, which keeps objects back for no longer than the given time; 0 keeps nothing back. The list
// of few objects is over so soon, or costs so little when it begins anew, that nothing is kept back.
func (e *Engine) hold(world placement.World, atMost time.Duration) *holding {
	return &holding{e: e, world: world, until: e.Clock.Now().Add(atMost), over: atMost == 0 || e.few()}
}

// list lists what is in a scope, and hands it to take as it is to be observed. It returns the resource version of the list.
func (h *holding) list(ctx context.Context, scope objects.Scope, take func(sight)) (resourceVersion string, err error) {
	defer h.release(ctx)

	return h.e.Objects.All(ctx, h.e.Clock, scope, func(o objects.Object) error {
		take(sight{object: o, held: h})
		return ctx.Err()
	})
}

// keep reports whether the object is kept back. The first is not, so that moving begins at once.
func (h *holding) keep(ctx context.Context, o objects.Object) bool {
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

// release has everything observed that was kept back. Nothing is from now on.
func (h *holding) release(ctx context.Context) {
	h.over = true

	for _, o := range h.objects {
		h.e.observe(ctx, h.world, o)
	}

	h.objects = nil
}
