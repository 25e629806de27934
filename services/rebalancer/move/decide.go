package move

import (
	"cmp"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
	"github.com/clusterring/clusterring/services/rebalancer/obligation"
	"github.com/clusterring/clusterring/services/rebalancer/placement"
)

// Nothing in this file asks anybody: it follows from what the walk knows.

// resting returns the outcome if nothing is to be done about the object now; nil if something is.
func (w *walk) resting() *obligation.Outcome {
	switch {
	case w.at.InPlace:
		return w.outcome(obligation.SeenInPlace)
	case w.waitsForOwner():
		return w.blocked(obligation.OwnerOf(w.ownerID()))
	case w.kept:
		return w.blocked(obligation.HeldBy(w.object.Shard))
	}

	return nil
}

// waitsForOwner reports whether a controlled object has to wait until its owner is in its place, or is about to be, and whether that is known
// without a request: the object has a shard that may as well keep it, or the owner has none that it could get.
func (w *walk) waitsForOwner() bool {
	if w.at.Owner == nil || !w.at.Belongs || w.object.Draining {
		return false
	}

	owner := w.follows

	return owner.moving && owner.object.UID == w.at.Owner.UID && !owner.given &&
		(w.target.View.Available(w.object.Shard) || !w.target.View.Available(owner.object.Shard))
}

// ownerIsBetween reports whether the owner has no shard that it could be followed to, and is not yet about to get one.
func (w *walk) ownerIsBetween() bool {
	return w.at.Belongs && w.owned.Exists && !w.target.View.Available(w.owned.Shard) && len(w.target.View.AvailableShards()) > 0 &&
		!w.follows.given
}

// needsOwner reports whether the plan looks at the owner.
func (w *walk) needsOwner() bool { return w.at.Owner != nil && w.at.Input(w.object).NeedsOwner() }

// planned returns what the plan says.
func (w *walk) planned() plan.Action {
	in := w.at.Input(w.object)
	in.Owner = w.owned

	return plan.Decide(w.target.View, in)
}

// change returns what the plan has written; ok is false if that is nothing.
func (w *walk) change() (c objects.Change, ok bool) {
	switch w.action.Verb {
	case plan.Assign:
		c = objects.Change{Shard: w.action.To, RemoveDrain: w.object.Draining}
		if w.action.ChildrenFirst {
			c.Handover = new(w.handover.String())
		}
	case plan.Withdraw:
		c = objects.Change{RemoveDrain: true}
	case plan.Release:
		c = objects.Change{RemoveShard: w.object.Labelled, RemoveDrain: w.object.Draining}
	case plan.Drain:
		c = objects.Change{Drain: cmp.Or(w.action.To, v1alpha1.DrainValue)}
	case plan.AwaitAcknowledgement, plan.AwaitShard, plan.None:
		return c, false
	}

	return c, true
}

// waiting returns what an object waits for that is not written to.
func (w *walk) waiting() *obligation.Outcome {
	switch {
	case w.at.Owner != nil && w.follows.moving:
		return w.blocked(obligation.OwnerOf(w.ownerID()))
	case w.action.Verb != plan.AwaitAcknowledgement:
		return w.outcome(obligation.SeenInPlace) // it is where its owner is, or can be nowhere else
	case w.at.Role == resources.Main:
		return w.outcome(obligation.Asked)
	}

	// The owner has come to its place since it was looked at, or is about to be seen.
	out := w.blocked(obligation.OwnerOf(w.ownerID()))
	out.RetryAfter = ownerSoon

	return out
}

// written returns what an object has come to that is this way after a write.
func (w *walk) written(now objects.Object, at placement.Assessment) *obligation.Outcome {
	before := w.object
	w.object = now

	switch {
	case at.InPlace:
		return w.outcome(obligation.SeenInPlace)
	case w.action.Verb == plan.Drain && now.Draining:
		return w.outcome(obligation.Asked)
	case now.Shard != before.Shard || now.Draining != before.Draining:
		return w.outcome(obligation.Woken) // a step further
	}

	out := w.outcome(obligation.Failed)
	out.Reason = "something takes back what is written"

	return out
}

// ownerID names the main object that the object follows; a main object follows itself.
func (w *walk) ownerID() objects.ID { return w.at.OwnerID(w.object) }

func (w *walk) outcome(event obligation.Event) *obligation.Outcome {
	return &obligation.Outcome{Object: &w.object, Event: event}
}

func (w *walk) blocked(cause obligation.Cause) *obligation.Outcome {
	return &obligation.Outcome{Object: &w.object, Event: obligation.Blocked, Cause: cause}
}

// failed reports an error of a request. That an object is gone is none. The object is nil if it could not be read.
func failed(o *objects.Object, err error) *obligation.Outcome {
	if resources.IsGone(err) {
		return &obligation.Outcome{Event: obligation.SeenInPlace}
	}

	return &obligation.Outcome{Object: o, Event: obligation.Failed, Reason: err.Error(), Stale: o == nil}
}
