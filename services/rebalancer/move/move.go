package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/internal/takeover"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/placement"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

const (
	// requestTimeout is the timeout of one request. The next read of the object shows the effect of one that has timed out.
	requestTimeout = 30 * time.Second
	// unansweredAfter is how long a failed write must have taken to count as unanswered: half of the least time that it has.
	unansweredAfter = 500 * time.Millisecond
	// ownerSoon is the pause between two reads of an owner, if no event reports when the owner gets a shard.
	ownerSoon = time.Second
	// askAgain is the pause after a Lease could not be read.
	askAgain = time.Second
	// confirmWithin is the timeout for the confirmation that a shard does not hold its Lease. The period that it allows
	// starts with the request, so a late confirmation allows little.
	confirmWithin = 10 * time.Second
)

// Obligations are the obligations of the ring, as far as one move depends on others. Its methods must be safe for concurrent use.
type Obligations interface {
	// See records an object that is not in its place.
	See(o feed.Object)
	// Has returns an object that is not in its place, as it was last seen; false if there is no obligation for it.
	Has(id feed.ID) (feed.Object, bool)
	// Grant gives an object a permit of its shard. It reports whether one was free.
	Grant(id feed.ID, shard string) bool
	// Held reports whether objects of the shard wait because the shard may still work on them, and a retry is scheduled.
	Held(shard string) bool
	// Free records that a shard does not work on its objects.
	Free(shard string)
	// Gathered reports whether all followers of an object are at the shard to, from which resource versions on, and when the
	// last one arrived; the time is later if that is not known. If not all are there, it starts a search for them, and they
	// may move to that shard. The object must not have a shard that works on it, or must follow another object.
	Gathered(o feed.Object, to string) (from contract.Handover, since time.Time, all bool)
	// Writing records that a write to an object of the resource begins. Call the result with the resource version of the object after the
	// write, if the write has changed it.
	Writing(of schema.GroupResource) (written func(version string))
	// Given reports whether no shard works on the object with this name and UID, and the object waits for its followers.
	Given(owner feed.ID, uid types.UID) bool
	// Grace returns how long objects of lost shards have to wait for their shards to come back, and the reason. A wait of
	// zero or less means that they do not have to wait.
	Grace() (wait time.Duration, reason string)
}

// Mover moves the objects of one ring. All fields are required. It is safe for concurrent use.
type Mover struct {
	Objects     *feed.Client
	Guard       *takeover.Guard
	Lookup      placement.Lookup
	Obligations Obligations
	// Clock is the clock of the guard.
	Clock clock.WithDelayedExecution
	// Turn requests the turn to decide about an object: see [Turns.Begin].
	Turn func(owner, id feed.ID) (end func(), ok bool)
	// Hangs is called while a write of the object hangs. It may be called late, when the move has ended.
	Hangs func(id feed.ID)
	// Moved is called after each successful write.
	Moved func(o feed.Object, verb plan.Verb)
}

// glance avoids the queue of the API server if nothing has to be done.
func (m *Mover) glance(ctx context.Context, w *walk) *work.Outcome {
	if w.stale = w.stale || w.present().Unread(w.object); w.stale {
		return nil
	}

	return m.place(ctx, w)
}

// enter precedes all requests: the object may have to wait long in the queue. What later stages find out about the owner or a
// Lease is used without delay.
func (m *Mover) enter(ctx context.Context, w *walk) *work.Outcome {
	leave, err := m.Objects.Enter(ctx)
	if err != nil {
		return failed(nil, err)
	}

	w.leave = sync.OnceFunc(leave)
	w.atEnd(w.leave)

	return nil
}

// read reads an object that has changed since it was seen.
func (m *Mover) read(ctx context.Context, w *walk) *work.Outcome {
	if !w.stale {
		return nil
	}

	o, err := m.get(ctx, w.object.ID)
	if err != nil {
		return failed(nil, err)
	}

	w.object = o

	return nil
}

// place determines where the object belongs, and whether something has to be done about it. It sends no request.
func (m *Mover) place(ctx context.Context, w *walk) (out *work.Outcome) {
	if t := w.present(); t != w.target { // otherwise, it is the object of the last time
		var err error

		w.target = t
		w.at, err = t.Assess(ctx, m.Lookup, w.object)
		w.object.Above = w.at.Above

		switch {
		case errors.Is(err, placement.ErrKeyUnread):
			return failed(nil, err)
		case err != nil:
			return failed(&w.object, err)
		}
	}

	shard := w.object.Shard
	w.follows = m.followed(w)
	w.kept = shard != "" && !w.works(shard) && m.Obligations.Held(shard)

	return w.resting()
}

// followed returns what is known about the object that the object follows.
func (m *Mover) followed(w *walk) (f followed) {
	if w.at.Owner == nil {
		return followed{}
	}

	id := w.ownerID()
	f.object, f.moving = m.Obligations.Has(id)
	f.given = m.Obligations.Given(id, w.at.Owner.UID)

	return f
}

// turn requests the turn to decide about the object.
func (m *Mover) turn(_ context.Context, w *walk) *work.Outcome {
	end, ok := m.Turn(w.ownerID(), w.object.ID)
	if !ok {
		return w.blocked(work.TurnOf(w.object.ID))
	}

	w.atEnd(end)

	return nil
}

// owner determines the shard of a controlled object's owner. It reads the owner, unless no shard works on the owner as far as
// is known: only the rebalancer can then assign it.
func (m *Mover) owner(ctx context.Context, w *walk) *work.Outcome {
	if !w.needsOwner() {
		return nil
	}

	var err error

	if w.follows = m.followed(w); w.follows.moving && w.follows.given {
		o := w.follows.object
		w.owned = plan.Owner{Exists: true, Shard: o.Shard, Draining: o.Draining, Belongs: w.at.OwnerBelongs}
	} else if w.owned, err = m.readOwner(ctx, w); err != nil {
		return failed(&w.object, err)
	}

	// The owner was read after the object was placed, and may have entered or left the ring.
	if w.at.Owner.Resource.Selector != "" {
		w.target = nil

		if out := m.place(ctx, w); out != nil || !w.needsOwner() {
			return cmp.Or(out, w.outcome(work.Woken))
		}

		w.owned.Belongs = w.at.OwnerBelongs
	}

	if w.follows = m.followed(w); w.ownerIsBetween() {
		return w.blocked(work.OwnerOf(w.ownerID()))
	}

	return nil
}

// readOwner reads the owner of a controlled object. If the owner is not in its place, it records this.
func (m *Mover) readOwner(ctx context.Context, w *walk) (plan.Owner, error) {
	o, err := m.get(ctx, w.ownerID())

	switch {
	case resources.IsGone(err):
		return plan.Owner{}, nil
	case err != nil:
		return plan.Owner{}, fmt.Errorf("find the owner: %w", err)
	case o.UID != w.at.Owner.UID:
		return plan.Owner{}, nil
	}

	at, err := w.target.Assess(ctx, m.Lookup, o)
	if err != nil {
		return plan.Owner{}, fmt.Errorf("find where the owner belongs: %w", err)
	}

	if o.Above = at.Above; !at.InPlace {
		m.Obligations.See(o)
	}

	return plan.Owner{Exists: true, Shard: o.Shard, Draining: o.Draining, Belongs: w.at.OwnerBelongs}, nil
}

// decide asks the plan.
func (m *Mover) decide(_ context.Context, w *walk) *work.Outcome {
	w.action = w.planned()

	return nil
}

// grace lets objects wait for shards that may come back soon.
func (m *Mover) grace(_ context.Context, w *walk) *work.Outcome {
	if w.action.TakenFrom == "" || w.action.Verb != plan.Assign {
		return nil
	}

	wait, reason := m.Obligations.Grace()
	if wait <= 0 {
		return nil
	}

	out := w.blocked(work.HeldBy(w.action.TakenFrom))
	out.RetryAfter, out.Reason = wait, reason

	return out
}

// confirm determines whether the object may be taken from its shard without asking the shard, and until when.
func (m *Mover) confirm(ctx context.Context, w *walk) *work.Outcome {
	shard := w.action.TakenFrom
	if shard == "" {
		return nil
	}

	ctx, done := context.WithTimeout(ctx, confirmWithin)
	defer done()

	var (
		verdict takeover.Verdict
		err     error
	)

	if w.target.View.Works(shard) { // but not in this namespace
		verdict, err = m.Guard.MayTakeIn(ctx, shard, w.at.In)
	} else {
		verdict, err = m.Guard.MayTake(ctx, shard)
	}

	switch {
	case err != nil:
		out := w.blocked(work.HeldBy(shard))
		out.RetryAfter, out.Reason = askAgain, fmt.Sprintf("confirm that shard %s does not hold its Lease: %v", shard, err)

		return out
	case !verdict.Allowed:
		out := w.blocked(work.HeldBy(shard))
		out.RetryAfter, out.Reason = verdict.RetryAfter, verdict.Reason

		return out
	}

	m.Obligations.Free(shard)

	w.until = verdict.Until

	return nil
}

// gather lets all objects that follow the object move first.
func (m *Mover) gather(_ context.Context, w *walk) *work.Outcome {
	if w.leavesFirst() {
		w.action = plan.Action{Verb: plan.Release, TakenFrom: w.action.TakenFrom}
	}

	if !w.action.ChildrenFirst {
		return nil
	}

	handover, since, all := m.Obligations.Gathered(w.object, w.action.To)
	if w.handover = handover; !all {
		return w.blocked(work.FollowersOf(w.object.UID))
	}

	if wait := w.behind() - m.Clock.Since(since); wait > 0 {
		out := w.blocked(work.FollowersOf(w.object.UID))
		out.RetryAfter = wait

		return out
	}

	return nil
}

// grant takes a permit for a drain.
func (m *Mover) grant(_ context.Context, w *walk) *work.Outcome {
	if w.action.Verb == plan.Drain && !m.Obligations.Grant(w.object.ID, w.object.Shard) {
		return w.blocked(work.PermitOf(w.object.Shard, w.object.GVR.GroupResource()))
	}

	return nil
}

// act writes what the plan requests. If the plan writes nothing, act reports what the object waits for.
func (m *Mover) act(ctx context.Context, w *walk) *work.Outcome {
	to, ok := w.labels()
	if !ok {
		w.follows = m.followed(w)

		return w.waiting()
	}

	if !w.until.IsZero() {
		var cancel context.CancelFunc

		ctx, cancel = context.WithTimeout(ctx, w.until.Sub(m.Clock.Now()))
		defer cancel()
	}

	return m.write(ctx, w, to)
}

// write writes labels, and reports the object as it is afterwards. If the object has changed since it was seen, the outcome
// requests another read and decision.
//
// The API server gives up a write that takes long, such as one whose webhook does not answer, and the move waits until it says so. Even a write
// that is executed after that does no harm: it requires the version of the object that it was decided for. If it is executed before the next read, the
// read shows it; if after, it or the next write finds another version and fails. A write that must end at a time is given up earlier.
// A write that hangs leaves its turn at the API server to others.
func (m *Mover) write(ctx context.Context, w *walk, to feed.Labels) *work.Outcome {
	began, within := m.Clock.Now(), w.within
	if !w.until.IsZero() {
		within = min(within, w.until.Sub(began)*9/10) //nolint:mnd // a tenth for the way of the answer
	}

	limited, cancel := context.WithTimeout(feed.Within(ctx, max(within, time.Millisecond)), requestTimeout)
	defer cancel()

	written := m.Obligations.Writing(w.object.GVR.GroupResource())
	hangs := m.Clock.AfterFunc(w.hung, w.hangs(m.Hangs))

	now, err := m.Objects.Label(limited, w.object, to)

	hangs.Stop()

	took := m.Clock.Since(began)

	if err == nil && now.ResourceVersion != w.object.ResourceVersion {
		written(now.ResourceVersion)
	}

	out := m.wrote(ctx, w, now, err)
	out.Full = err != nil && to.Handover != nil && *to.Handover != "" && tooLong(err)
	out.Wrote, out.Took, out.Unanswered = true, took, err != nil && took >= unansweredAfter

	return out
}

// wrote returns the outcome of a write that the API server has answered, or has given up.
func (m *Mover) wrote(ctx context.Context, w *walk, now feed.Object, err error) *work.Outcome {
	if apierrors.IsConflict(err) {
		return &work.Outcome{Object: &w.object, Event: work.Failed, Stale: true, Brief: true, Reason: "the object keeps changing"}
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

	now.Above = at.Above

	return w.written(now, at)
}

func (m *Mover) get(ctx context.Context, id feed.ID) (feed.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()

	return m.Objects.Get(ctx, id)
}
