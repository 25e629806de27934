// Package move takes an object one step towards its place.
//
// It consists of three files. This file lists the stages of a move in order. decide.go contains what follows from known facts,
// without any requests. move.go contains the reads and the writes. The package stores nothing: it reports everything that it
// has seen as an [work.Outcome].
//
// # The stages of a move
//
//	stage    asks                  the move continues if
//	glance   nothing               something has to be done about the object as it was seen, and nothing known prevents it
//	enter    the API server queue  the object may be read and written; later results do not become outdated in a queue
//	read     the API server        the object exists; it is read only if it has changed since it was seen
//	place    nothing               the same as for glance, for the current target
//	turn     [Turns]               no decision is in progress about the object's owner, or about its followers
//	owner    the API server        the shard of a controlled object's owner is known, or the owner is about to get one
//	decide   [plan.Decide]         always
//	grace    [Obligations]         lost shards are not expected to come back
//	confirm  [takeover.Guard]      a shard that loses the object without being asked does not hold its Lease
//	gather   [Obligations]         all objects that follow the object have moved before it, or some time before it; an object
//	                               that leaves a dead shard first does not wait for them
//	grant    [Obligations]         one more object of the shard may be drained
//	act      the API server        never: it writes, or reports what the object waits for
//
// A move that ends before act costs nothing to repeat: the object waits for whatever has ended the move.
//
// # Rejected alternative
//
// The alternative is to collect all facts first, and to decide once. Almost all objects need only a few of the facts, and most
// facts cost a request. Some have side effects: a permit is taken, or a search for followers begins. Therefore, a stage asks for
// its fact only when all previous stages have passed.
package move

import (
	"context"
	"slices"
	"time"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/placement"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// stage is one stage of a move. It returns nil if the move continues, and otherwise the outcome of the move.
type stage func(m *Mover, ctx context.Context, w *walk) *work.Outcome

// way lists the stages in order, except act, which always ends the move.
var way = [...]stage{
	(*Mover).glance,
	(*Mover).enter,
	(*Mover).read,
	(*Mover).place,
	(*Mover).turn,
	(*Mover).owner,
	(*Mover).decide,
	(*Mover).grace,
	(*Mover).confirm,
	(*Mover).gather,
	(*Mover).grant,
}

// walk is one move of an object, with the results of its stages.
type walk struct {
	// present returns the current target. stale reports whether the object has changed since it was seen.
	present func() *placement.Target
	stale   bool
	// plain reports whether the annotation of a hand-over does not fit into the object.
	plain bool
	// within is how long the API server may take for a write. hung is after how long the write counts as hanging.
	within, hung time.Duration
	// leave is the result of enter: it ends the turn at the API server, at the latest when the move ends.
	leave func()

	object feed.Object
	// glance sets target, at, kept and follows, and place sets them again.
	target *placement.Target
	at     placement.Assessment
	// kept reports whether the object is at a shard that may still work on it, and other objects wait for the same shard.
	kept    bool
	follows followed
	// action is the result of decide.
	action plan.Action
	// owned is the result of owner.
	owned plan.Owner
	// until is the result of confirm: the deadline of a write. It is zero if no shard loses the object without being asked.
	until time.Time
	// handover is the result of gather.
	handover contract.Handover

	// ends are called in reverse order when the move ends.
	ends []func()
}

// followed is what is known without a request about the main object that a controlled object follows.
type followed struct {
	object feed.Object
	// moving reports whether the object is out of its place. given reports whether no shard works on it, and it waits for its
	// followers.
	moving, given bool
}

// Move moves an object one step. It asks for the target again when the object may be read and written.
func (m *Mover) Move(ctx context.Context, target func() *placement.Target, job work.Job) work.Outcome {
	w := &walk{present: target, stale: job.Stale, plain: job.Plain, object: job.Object, within: job.Within, hung: job.Hung}
	defer w.end()

	for _, next := range way {
		if out := next(m, ctx, w); out != nil {
			return *out
		}
	}

	return *m.act(ctx, w)
}

// hangs returns what happens when the write hangs: others get the turn at the API server.
func (w *walk) hangs(report func(feed.ID)) func() {
	id := w.object.ID

	return func() {
		w.leave()

		go report(id) // fake clocks call this with their lock held
	}
}

// atEnd registers a function that is called when the move ends.
func (w *walk) atEnd(end func()) { w.ends = append(w.ends, end) }

func (w *walk) end() {
	for _, end := range slices.Backward(w.ends) {
		end()
	}
}
