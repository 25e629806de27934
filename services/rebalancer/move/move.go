// Package move determines where an object of a ring belongs, and takes it one step towards its place.
//
// A [Target] is the desired state of the ring. Without a request, it assesses where an object belongs; the owner of a
// controlled object is assumed to be in its place.
//
// A step reads what it has to, decides, and sends at most one write. What is known without a request is in the
// [work.Job], and what the step has seen and done is in the [work.Outcome]: the package stores nothing.
//
// # The stages of a move
//
//	stage    asks              the move continues if
//	read     the API server    the object exists; it is read only if it has changed since it was seen
//	place    nothing           something has to be done about the object, nothing known prevents it, and it still follows
//	                           the objects with which it takes turns
//	owner    the API server    the shard of a controlled object's owner is known, or the owner is about to get one
//	decide   [plan.Decide]     lost shards are not expected to come back
//	confirm  [takeover.Guard]  a shard that loses the object without being asked does not hold its Lease
//	gather   the job           all objects that follow the object have moved before it, or some time before it; an object
//	                           that leaves a dead shard first does not wait for them
//	act      the API server    never: it writes, or reports what the object waits for, such as a permit to be drained
//
// A move that ends before act costs nothing to repeat: the object waits for whatever has ended the move.
//
// # Rejected alternative
//
// The alternative is to collect all facts first, and to decide once. Almost all objects need only a few of the facts,
// and some facts cost a request. Therefore, a stage asks for its fact only when all previous stages have passed.
package move

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/internal/takeover"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

const (
	// requestTimeout is the timeout of one request. The next read of the object shows the effect of one that has timed
	// out.
	requestTimeout = 30 * time.Second
	// unansweredAfter is how long a failed write must have taken to count as unanswered: half of the least time that it
	// has.
	unansweredAfter = 500 * time.Millisecond
	// ownerSoon is the pause between two reads of an owner, if no event reports when the owner gets a shard.
	ownerSoon = time.Second
	// askAgain is the pause after a Lease could not be read.
	askAgain = time.Second
	// confirmWithin is the timeout for the confirmation that a shard does not hold its Lease. The period that it allows
	// starts with the request, so a late confirmation allows little.
	confirmWithin = 10 * time.Second
)

// Mover moves the objects of one ring. All fields are required. It is safe for concurrent use.
type Mover struct {
	Objects *feed.Client
	Guard   *takeover.Guard
	Lookup  Lookup
	// Clock is the clock of the guard.
	Clock clock.WithDelayedExecution
	// Free is called when a shard was found not to work on its objects.
	Free func(shard string)
	// Moved is called after each successful write.
	Moved func(o feed.Object, verb plan.Verb)
}

// walk is one move of an object, with the results of its stages.
type walk struct {
	work.Job

	target *Target
	// hangs is called when the write hangs.
	hangs func()
	// object is the object as the move has last seen it, and at is the result of place, with that of owner.
	object feed.Object
	at     Assessment
	// action is the result of decide.
	action plan.Action
	// misplaced is the owner, if it was read and is not in its place.
	misplaced *feed.Object
	// until is the result of confirm: the deadline of a write. It is zero if no shard loses the object without being
	// asked.
	until time.Time
	// handover is the result of gather.
	handover contract.Handover
}

// Move moves an object one step. The object may be read and written from now on. hangs is called if the write hangs; it
// must not block.
func (m *Mover) Move(ctx context.Context, target *Target, job work.Job, hangs func()) work.Outcome {
	w := &walk{Job: job, target: target, hangs: hangs, object: job.Object}

	var out *work.Outcome

	for _, stage := range [...]func(context.Context, *walk) *work.Outcome{
		m.read, m.place, m.owner, m.decide, m.confirm, m.gather, m.act,
	} {
		if out = stage(ctx, w); out != nil {
			break
		}
	}

	out.Owner = w.misplaced

	return *out
}

// read reads an object that has changed since it was seen.
func (m *Mover) read(ctx context.Context, w *walk) *work.Outcome {
	if !w.Stale && !w.target.Unread(w.object) {
		return nil
	}

	o, err := m.get(ctx, w.object.ID)
	if err != nil {
		return failed(nil, err)
	}

	if o.Above = w.object.Above; o.Lineage()[0] != w.object.Lineage()[0] {
		o.Above = feed.Above{}
	}

	w.object = o

	return nil
}

// place determines where the object belongs, and whether something has to be done about it. It sends no request.
func (m *Mover) place(ctx context.Context, w *walk) (out *work.Outcome) {
	at, err := w.target.Assess(ctx, m.Lookup, w.object)
	if err != nil {
		return failed(&w.object, err)
	}

	w.at, w.object.Above = at, at.Above

	switch {
	case w.object.UID != w.Object.UID || w.object.Lineage() != w.Object.Lineage():
		return w.outcome(work.Due) // it takes turns with other objects, and other facts concern it
	case at.InPlace:
		return w.outcome(work.InPlace)
	// A controlled object waits until its owner is in its place, or is about to be: it may keep its shard meanwhile, or
	// its owner has no shard to which it could move. No request is needed to know that.
	case at.Main != nil && at.Belongs && !w.object.Draining && w.Follows != nil && !w.Given &&
		(w.works(w.object.Shard) || !w.works(w.Follows.Shard)):
		return w.blocked(w.waitsFor())
	case w.Held && w.object.Shard == w.Object.Shard && !w.works(w.object.Shard):
		return w.blocked(work.HeldBy(w.object.Shard)) // it may still work, and another object asks
	}

	return nil
}

// owner determines the shard of a controlled object's owner. It reads the owner, unless no shard works on the owner as
// far as is known: only the rebalancer can then assign it.
func (m *Mover) owner(ctx context.Context, w *walk) *work.Outcome {
	if !w.needsOwner() {
		return nil
	}

	var owner plan.Owner

	if w.Given {
		owner = plan.Owner{Exists: true, Shard: w.Follows.Shard, Draining: w.Follows.Draining}
	} else if err := m.readOwner(ctx, w, &owner); err != nil {
		return failed(&w.object, err)
	}

	// The owner was read after the object was placed, and may have entered or left the ring.
	if w.at.Main.Resource.Selector != "" {
		if out := m.place(ctx, w); out != nil || !w.needsOwner() {
			return cmp.Or(out, w.outcome(work.Due))
		}
	}

	owner.Belongs = w.at.Owner.Belongs
	w.at.Owner = owner

	// The owner may have no shard to which the object could follow it, and not be about to get one.
	if w.at.Belongs && owner.Exists && !w.works(owner.Shard) && len(w.target.View.AvailableShards()) > 0 && !w.Given {
		return w.blocked(w.waitsFor())
	}

	return nil
}

// readOwner reads the owner of a controlled object. If the owner is not in its place, the outcome reports this.
func (m *Mover) readOwner(ctx context.Context, w *walk, owner *plan.Owner) error {
	o, err := m.get(ctx, w.at.OwnerID(w.object))

	switch {
	case resources.IsGone(err), err == nil && o.UID != w.at.Main.UID:
		return nil
	case err != nil:
		return fmt.Errorf("find the owner: %w", err)
	}

	at, err := w.target.Assess(ctx, m.Lookup, o)
	if err != nil {
		return fmt.Errorf("find where the owner belongs: %w", err)
	}

	if o.Above = at.Above; !at.InPlace {
		w.misplaced = &o
	}

	*owner = plan.Owner{Exists: true, Shard: o.Shard, Draining: o.Draining}

	return nil
}

// decide asks the plan, and lets objects wait for shards that may come back soon.
func (m *Mover) decide(_ context.Context, w *walk) *work.Outcome {
	w.action = plan.Decide(w.target.View.In(w.at.In), w.at.Object)
	if w.action.TakenFrom == "" || w.action.Verb != plan.Assign || w.Grace <= 0 {
		return nil
	}

	return w.held(w.action.TakenFrom, w.Grace, w.GraceReason)
}

// confirm determines whether the object may be taken from its shard without asking the shard, and until when.
func (m *Mover) confirm(ctx context.Context, w *walk) *work.Outcome {
	shard := w.action.TakenFrom
	if shard == "" {
		return nil
	}

	ctx, done := context.WithTimeout(ctx, confirmWithin)
	defer done()

	may := m.Guard.MayTake
	if w.target.View.Works(shard) { // but not in this namespace
		may = func(ctx context.Context, shard string) (takeover.Verdict, error) {
			return m.Guard.MayTakeIn(ctx, shard, w.at.In)
		}
	}

	switch verdict, err := may(ctx, shard); {
	case err != nil:
		return w.held(shard, askAgain, fmt.Sprintf("confirm that shard %s does not hold its Lease: %v", shard, err))
	case !verdict.Allowed:
		return w.held(shard, verdict.RetryAfter, verdict.Reason)
	default:
		w.until = verdict.Until
	}

	m.Free(shard)

	return nil
}

// gather lets all objects that follow the object move first.
func (m *Mover) gather(_ context.Context, w *walk) *work.Outcome {
	// The shard could come back, and work on the object although some of what follows it has left.
	if shard := w.action.TakenFrom; w.action.ChildrenFirst && shard != "" && !w.target.View.HoldsOff(shard) {
		w.action = plan.Action{Verb: plan.Release, TakenFrom: shard}
	}

	switch of := w.object.GVR.GroupResource(); {
	case !w.action.ChildrenFirst:
		return nil
	case w.at.Controlled && !w.Related && !m.Lookup.Ancestors.Between(of):
		return nil // nothing has ever followed an object of this kind
	case !w.Gathered.All || w.Gathered.To != w.action.To:
		return w.gathers(0)
	}

	w.handover = w.Gathered.From
	if wait := w.behind() - m.Clock.Since(w.Gathered.Since); wait > 0 {
		return w.gathers(wait)
	}

	return nil
}

// act writes what the plan requests. If the plan writes nothing, or a permit is missing, act reports what the object
// waits for.
func (m *Mover) act(ctx context.Context, w *walk) *work.Outcome {
	if shard := w.object.Shard; w.action.Verb == plan.Drain && w.Permit != shard {
		return w.blocked(work.PermitOf(shard, w.object.GVR.GroupResource()))
	}

	to, ok := w.labels()

	switch {
	case ok && w.until.IsZero():
		return m.write(ctx, w, to)
	case ok:
		ctx, cancel := context.WithTimeout(ctx, w.until.Sub(m.Clock.Now()))
		defer cancel()

		return m.write(ctx, w, to)
	case w.at.Main != nil && (w.Follows != nil || w.misplaced != nil):
		return w.blocked(w.waitsFor())
	case w.action.Verb != plan.AwaitAcknowledgement:
		return w.outcome(work.InPlace) // it is at the shard of its owner, or has no other place
	case !w.at.Controlled:
		return w.outcome(work.Draining)
	}

	// The owner has reached its place since it was read, or is about to be seen there.
	out := w.blocked(w.waitsFor())
	out.RetryAfter = ownerSoon

	return out
}

// write writes labels, and reports the object as it is afterwards. If the object has changed since it was seen, the
// outcome requests another read and decision.
//
// The API server gives up a write that takes long, such as one whose webhook does not answer, and the move waits until
// it says so. Even a write that is executed after that does no harm: it requires the version of the object that it was
// decided for. If it is executed before the next read, the read shows it; if after, it or the next write finds another
// version and fails. A write that must end at a time is given up earlier.
func (m *Mover) write(ctx context.Context, w *walk, to feed.Labels) *work.Outcome {
	began, within := m.Clock.Now(), w.Within
	if !w.until.IsZero() {
		within = min(within, w.until.Sub(began)*9/10) //nolint:mnd // a tenth for the way of the answer
	}

	limited, cancel := context.WithTimeout(feed.Within(ctx, max(within, time.Millisecond)), requestTimeout)
	defer cancel()

	hangs := m.Clock.AfterFunc(w.Hung, w.hangs)

	now, err := m.Objects.Label(limited, w.object, to)

	hangs.Stop()

	took, before := m.Clock.Since(began), w.object.ResourceVersion

	out := m.wrote(ctx, w, now, err)
	out.Full = err != nil && to.Handover != nil && *to.Handover != "" && tooLong(err)
	out.Wrote, out.Took, out.Unanswered = true, took, err != nil && took >= unansweredAfter

	if err == nil && now.ResourceVersion != before {
		out.Version = now.ResourceVersion
	}

	return out
}

// wrote returns the outcome of a write that the API server has answered, or has given up.
func (m *Mover) wrote(ctx context.Context, w *walk, now feed.Object, err error) *work.Outcome {
	if apierrors.IsConflict(err) {
		return &work.Outcome{
			Object: &w.object, Next: work.Delayed, Stale: true, Brief: true, Reason: "the object keeps changing",
		}
	}

	if err != nil {
		out := failed(&w.object, err)
		out.Stale = true // the write may have been executed anyway

		return out
	}

	m.Moved(w.object, w.action.Verb)

	at, err := w.target.Assess(ctx, m.Lookup, now)
	if err != nil {
		return failed(&now, err)
	}

	before := w.object
	w.object, w.object.Above = now, at.Above

	switch {
	case at.InPlace:
		return w.outcome(work.InPlace)
	case w.action.Verb == plan.Drain && now.Draining:
		return w.outcome(work.Draining)
	case now.Shard != before.Shard || now.Draining != before.Draining:
		return w.outcome(work.Due) // one step further
	}

	return &work.Outcome{Object: &w.object, Next: work.Delayed, Reason: "another client reverts the labels"}
}

func (m *Mover) get(ctx context.Context, id feed.ID) (feed.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()

	return m.Objects.Get(ctx, id)
}

// Nothing below sends a request: everything follows from what the walk knows.

const (
	// behindPlain is how long an object stays behind what follows it if its next shard ignores the hand-over. Caches
	// usually show within this time what was written.
	behindPlain = 250 * time.Millisecond
	// behindFull is the same for an object that has no room for the hand-over. A shard doubts a hand-over after this time.
	behindFull = 2 * time.Second
)

// needsOwner reports whether the plan depends on the owner.
func (w *walk) needsOwner() bool { return w.at.Main != nil && w.at.NeedsOwner() }

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

// tooLong reports whether the API server has refused a write because of the size of the annotations.
func tooLong(err error) bool {
	cause, found := apierrors.StatusCause(err, metav1.CauseTypeTooLong)

	return found && strings.HasPrefix(cause.Field, "metadata.annotations")
}

// held returns the outcome if a shard may still work on the object.
func (w *walk) held(shard string, retry time.Duration, reason string) *work.Outcome {
	out := w.blocked(work.HeldBy(shard))
	out.RetryAfter, out.Reason = retry, reason

	return out
}

// gathers returns the outcome if what follows the object has to move to its next shard first, or has moved there a
// moment ago.
func (w *walk) gathers(wait time.Duration) *work.Outcome {
	out := w.blocked(work.FollowersOf(w.object.UID))
	out.To, out.RetryAfter = w.action.To, wait

	return out
}

// waitsFor returns the cause that the main object that the object follows is not in its place. Its obligation may be
// about another version of its resource than the one that is served now.
func (w *walk) waitsFor() work.Cause {
	switch {
	case w.misplaced != nil:
		return work.OwnerOf(w.misplaced.ID)
	case w.Follows != nil:
		return work.OwnerOf(w.Follows.ID)
	}

	return work.OwnerOf(w.at.OwnerID(w.object))
}

func (w *walk) outcome(next work.Phase) *work.Outcome {
	return &work.Outcome{Object: &w.object, Next: next}
}

func (w *walk) blocked(cause work.Cause) *work.Outcome {
	return &work.Outcome{Object: &w.object, Next: work.Parked, Cause: cause}
}

// failed returns the outcome of a request error. An error that reports a deleted object is not a failure. o is nil if
// it could not be read.
func failed(o *feed.Object, err error) *work.Outcome {
	if resources.IsGone(err) {
		return &work.Outcome{Next: work.InPlace}
	}

	return &work.Outcome{Object: o, Next: work.Delayed, Reason: err.Error(), Stale: o == nil}
}
