package move

import (
	"cmp"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/placement"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// Nothing in this file sends a request: everything follows from what the walk knows.

const (
	// behindPlain is how long an object stays behind what follows it if its next shard ignores the hand-over. Caches usually
	// show within this time what was written.
	behindPlain = 250 * time.Millisecond
	// behindFull is the same for an object that has no room for the hand-over. A shard doubts a hand-over after this time.
	behindFull = 2 * time.Second
)

// resting returns the outcome if nothing has to be done about the object now; otherwise nil.
func (w *walk) resting() *work.Outcome {
	shard := w.object.Shard

	switch {
	case w.at.InPlace:
		return w.outcome(work.SeenInPlace)
	case w.waitsForOwner():
		return w.blocked(w.waitsFor())
	case w.Held && shard == w.Object.Shard && !w.works(shard): // it may still work, and another object asks
		return w.blocked(work.HeldBy(shard))
	}

	return nil
}

// waitsForOwner reports whether it is known without a request that a controlled object has to wait until its owner is in its
// place, or is about to be: the object may keep its shard meanwhile, or its owner has no shard to which it could move.
func (w *walk) waitsForOwner() bool {
	if w.at.Owner == nil || !w.at.Belongs || w.object.Draining {
		return false
	}

	return w.Follows.Moving && !w.Follows.Given && (w.works(w.object.Shard) || !w.works(w.Follows.Object.Shard))
}

// ownerIsBetween reports whether the owner has no shard to which the object could follow it, and is not about to get one.
func (w *walk) ownerIsBetween() bool {
	return w.at.Belongs && w.owned.Exists && !w.works(w.owned.Shard) && len(w.target.View.AvailableShards()) > 0 &&
		!w.Follows.Given
}

// needsOwner reports whether the plan depends on the owner.
func (w *walk) needsOwner() bool { return w.at.Owner != nil && w.at.Input(w.object).NeedsOwner() }

// works reports whether the shard may work on the object, or on the one that it follows.
func (w *walk) works(shard string) bool { return w.target.View.In(w.at.In).Works(shard) }

// labels returns the labels that the action writes; ok is false if it writes nothing.
func (w *walk) labels() (to feed.Labels, ok bool) {
	switch w.action.Verb {
	case plan.Assign:
		to.Shard = w.action.To
		if w.Plain {
			w.handover = nil
		}

		if w.action.ChildrenFirst {
			to.Handover = new(w.handover.String())
		}
	case plan.Withdraw:
		to.Shard = w.object.Shard
	case plan.Release:
	case plan.Drain:
		to.Shard, to.Drain = w.object.Shard, cmp.Or(w.action.To, contract.DrainValue)
	case plan.AwaitAcknowledgement, plan.AwaitShard, plan.None:
		return to, false
	}

	resource, _, _ := w.target.Set.Find(w.object.GVR.GroupResource())
	to.Kind = resource.Kind.Kind

	return to, true
}

// behind returns how long the object stays behind the last of those that follow it.
func (w *walk) behind() time.Duration {
	switch {
	case len(w.handover) == 0: // nothing follows it
		return 0
	case w.Plain:
		return behindFull
	case w.target.View.HoldsOff(w.action.To):
		return 0
	}

	return behindPlain
}

// leavesFirst reports whether the object leaves its shard before what follows it. Otherwise, the shard could come back and work
// on the object although some of what follows it has left.
func (w *walk) leavesFirst() bool {
	return w.action.ChildrenFirst && w.action.TakenFrom != "" && !w.target.View.HoldsOff(w.action.TakenFrom)
}

// tooLong reports whether the API server has refused a write because of the size of the annotations.
func tooLong(err error) bool {
	cause, found := apierrors.StatusCause(err, metav1.CauseTypeTooLong)

	return found && strings.HasPrefix(cause.Field, "metadata.annotations")
}

// waiting returns what the object waits for if the action writes nothing.
func (w *walk) waiting() *work.Outcome {
	switch {
	case w.at.Owner != nil && (w.Follows.Moving || w.misplaced != nil):
		return w.blocked(w.waitsFor())
	case w.action.Verb != plan.AwaitAcknowledgement:
		return w.outcome(work.SeenInPlace) // it is at the shard of its owner, or has no other place
	case w.at.Role == resources.Main:
		return w.outcome(work.Asked)
	}

	// The owner has reached its place since it was read, or is about to be seen there.
	out := w.blocked(w.waitsFor())
	out.RetryAfter = ownerSoon

	return out
}

// held returns the outcome if a shard may still work on the object.
func (w *walk) held(shard string, retry time.Duration, reason string) *work.Outcome {
	out := w.blocked(work.HeldBy(shard))
	out.RetryAfter, out.Reason = retry, reason

	return out
}

// gathers returns the outcome if what follows the object has to move to its next shard first, or has moved there a moment ago.
func (w *walk) gathers(wait time.Duration) *work.Outcome {
	out := w.blocked(work.FollowersOf(w.object.UID))
	out.To, out.RetryAfter = w.action.To, wait

	return out
}

// written returns the outcome of a write, given the object after the write.
func (w *walk) written(now feed.Object, at placement.Assessment) *work.Outcome {
	before := w.object
	w.object = now

	switch {
	case at.InPlace:
		return w.outcome(work.SeenInPlace)
	case w.action.Verb == plan.Drain && now.Draining:
		return w.outcome(work.Asked)
	case now.Shard != before.Shard || now.Draining != before.Draining:
		return w.outcome(work.Woken) // one step further
	}

	out := w.outcome(work.Failed)
	out.Reason = "another client reverts the labels"

	return out
}

// waitsFor returns the cause that the main object that the object follows is not in its place. Its obligation may be about another
// version of its resource than the one that is served now.
func (w *walk) waitsFor() work.Cause {
	switch {
	case w.misplaced != nil:
		return work.OwnerOf(w.misplaced.ID)
	case w.Follows.Moving:
		return work.OwnerOf(w.Follows.Object.ID)
	}

	return work.OwnerOf(w.at.OwnerID(w.object))
}

func (w *walk) outcome(event work.Event) *work.Outcome {
	return &work.Outcome{Object: &w.object, Event: event}
}

func (w *walk) blocked(cause work.Cause) *work.Outcome {
	return &work.Outcome{Object: &w.object, Event: work.Blocked, Cause: cause}
}

// failed returns the outcome of a request error. An error that reports a deleted object is not a failure. o is nil if it could
// not be read.
func failed(o *feed.Object, err error) *work.Outcome {
	if resources.IsGone(err) {
		return &work.Outcome{Event: work.SeenInPlace}
	}

	return &work.Outcome{Object: o, Event: work.Failed, Reason: err.Error(), Stale: o == nil}
}
