// Package move takes one object one step towards its place.
//
// Three files tell all of it. This one lists the stages of the way, in order. In decide.go is what follows from what is known; nothing there
// asks anybody. In move.go are the reads and the writes. The package keeps nothing: what it has seen is reported as an [obligation.Outcome].
//
// # The way of an object
//
//	stage    asks                  the way goes on if
//	glance   nobody                something is to be done about the object as it was seen, and nothing known is in the way
//	enter    the API server queue  the object may be read and written; what is found out from now on does not get old in a queue
//	read     the API server        the object exists; it is read only if it has changed since it was seen
//	place    nobody                the same as glance, by the present target
//	turn     [Turns]               nobody decides about what the object follows, or what follows it
//	owner    the API server        the shard of a controlled object's owner is known, or the owner is about to get one
//	decide   [plan.Decide]         always
//	grace    [Obligations]         shards that are gone are not expected back
//	confirm  [takeover.Guard]      a shard that loses the object without being asked does not hold its Lease
//	gather   [Obligations]         all that follows the object has gone before it
//	grant    [Obligations]         one more object of the shard may be drained
//	act      the API server        never: it writes, or reports what the object waits for
//
// A way that ends before act costs nothing to repeat: the object waits for what ended it.
//
// # What was refused
//
// To gather all facts first, and to decide once. Nearly all objects need few of the facts, most facts cost a request, and some of them change
// something: a slot is taken, what follows the object is looked for. So each fact is asked for only by who has all those before it.
package move

import (
	"context"
	"slices"
	"time"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
	"github.com/clusterring/clusterring/services/rebalancer/obligation"
	"github.com/clusterring/clusterring/services/rebalancer/placement"
)

// stage is one stage of the way. It returns nil if the way goes on, and otherwise what the object has come to.
type stage func(m *Mover, ctx context.Context, w *walk) *obligation.Outcome

// way lists the stages in order. The last one, act, is not among them: it always ends the way.
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

// walk is one object on its way, with what the stages have found out.
type walk struct {
	// present returns the present target; stale says that the object has changed since it was seen.
	present func() *placement.Target
	stale   bool

	object objects.Object
	// target, at, kept and follows are set by glance, and again by place.
	target *placement.Target
	at     placement.Assessment
	// kept says that the object is at a shard that may still work on it, and that others wait for the same shard.
	kept    bool
	follows followed
	// action is set by decide.
	action plan.Action
	// owned is set by owner.
	owned plan.Owner
	// until is set by confirm: when a write has to be done. It is zero if no shard loses the object without being asked.
	until time.Time
	// handover is set by gather.
	handover v1alpha1.Handover

	// ends are called when the way ends, the last one first.
	ends []func()
}

// followed is what is known without a request of the main object that a controlled one follows.
type followed struct {
	object objects.Object
	// moving says that it is not in its place; given that nobody works on it, and that it waits for all that follows it.
	moving, given bool
}

// Move takes an object along its way. It asks for the target again when the object may be read and written.
func (m *Mover) Move(ctx context.Context, target func() *placement.Target, job obligation.Job) obligation.Outcome {
	w := &walk{present: target, stale: job.Stale, object: job.Object}
	defer w.end()

	for _, next := range way {
		if out := next(m, ctx, w); out != nil {
			return *out
		}
	}

	return *m.act(ctx, w)
}

// atEnd has a function called when the way ends.
func (w *walk) atEnd(end func()) { w.ends = append(w.ends, end) }

func (w *walk) end() {
	for _, end := range slices.Backward(w.ends) {
		end()
	}
}
