package move

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/internal/takeover"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
	"github.com/clusterring/clusterring/services/rebalancer/obligation"
	"github.com/clusterring/clusterring/services/rebalancer/placement"
)

const (
	// patience is how long one request may take. What becomes of it after that, the next look at the object shows.
	patience = 30 * time.Second
	// ownerSoon is the pause between two looks at an owner of which nothing tells when it gets a shard.
	ownerSoon = time.Second
	// askAgain is the pause after a Lease that could not be read.
	askAgain = time.Second
	// confirmWithin is how long the confirmation that a shard does not hold its Lease may take. What it allows counts from when it
	// was asked for, so that a late one allows little.
	confirmWithin = 10 * time.Second
)

// Obligations are those of the ring, as far as one move concerns others. Its methods may be called by several goroutines.
type Obligations interface {
	// See takes note of an object that is not in its place.
	See(o objects.Object)
	// Has returns an object that is not in its place, as it was last seen.
	Has(id objects.ID) (objects.Object, bool)
	// Grant gives an object a slot of its shard, if there is one.
	Grant(id objects.ID, shard string) bool
	// Held reports whether objects of the shard wait because it may still work on them; when to ask again is known then.
	Held(shard string) bool
	// Free says that a shard was found not to work on its objects.
	Free(shard string)
	// Gathered reports whether all that follows an object is at the shard where the object goes, and from when on. If not, it is looked for, and
	// may go there. Nobody works on the object, or it follows another one itself.
	Gathered(o objects.Object, to string) (from v1alpha1.Handover, all bool)
	// Given reports whether nobody works on an object of which this is the name and UID, and it waits for all that follows it.
	Given(owner objects.ID, uid types.UID) bool
	// Grace returns how long objects of shards that are gone have to wait for these to come back, and why; not positive if not.
	Grace() (wait time.Duration, reason string)
}

// Mover moves the objects of one ring. All fields are required. It may be used by several goroutines.
type Mover struct {
	Objects     *objects.Client
	Guard       *takeover.Guard
	World       placement.World
	Obligations Obligations
	// Clock is that of the guard.
	Clock clock.PassiveClock
	// Turn asks for the turn to decide about an object that follows the owner, or is the owner: see [Turns.Begin].
	Turn func(owner, id objects.ID) (end func(), ok bool)
	// Moved is called after each write that has succeeded.
	Moved func(o objects.Object, verb plan.Verb)
}

// glance saves the turn at the API server if there is nothing to do there.
func (m *Mover) glance(ctx context.Context, w *walk) *obligation.Outcome {
	if w.stale {
		return nil
	}

	return m.place(ctx, w)
}

// enter comes before all requests: the turn may be long in coming, and what is found out, of the owner or of a Lease, is acted on without a
// pause.
func (m *Mover) enter(ctx context.Context, w *walk) *obligation.Outcome {
	leave, err := m.Objects.Enter(ctx)
	if err != nil {
		return failed(nil, err)
	}

	w.atEnd(leave)

	return nil
}

// read reads an object that has changed since it was seen.
func (m *Mover) read(ctx context.Context, w *walk) *obligation.Outcome {
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

// place finds out where the object belongs, and whether something is to be done about it. It sends no request.
func (m *Mover) place(ctx context.Context, w *walk) (out *obligation.Outcome) {
	var err error

	w.target = w.present()
	w.at, err = w.target.Assess(ctx, m.World, w.object)
	w.object.Above = w.at.Above

	if err != nil {
		return failed(&w.object, err)
	}

	shard := w.object.Shard
	w.follows = m.followed(w)
	w.kept = shard != "" && !w.target.View.Available(shard) && m.Obligations.Held(shard)

	return w.resting()
}

// followed returns what is known of the object that another one follows.
func (m *Mover) followed(w *walk) (f followed) {
	if w.at.Owner == nil {
		return followed{}
	}

	id := w.ownerID()
	f.object, f.moving = m.Obligations.Has(id)
	f.given = m.Obligations.Given(id, w.at.Owner.UID)

	return f
}

// turn asks for the turn to decide about the object.
func (m *Mover) turn(_ context.Context, w *walk) *obligation.Outcome {
	end, ok := m.Turn(w.ownerID(), w.object.ID)
	if !ok {
		return w.blocked(obligation.TurnOf(w.object.ID))
	}

	w.atEnd(end)

	return nil
}

// owner finds out where the owner of a controlled object is. The owner is read, unless it is known that nobody works on it: then it is our turn
// to give it a shard.
func (m *Mover) owner(ctx context.Context, w *walk) *obligation.Outcome {
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

	if w.follows = m.followed(w); w.ownerIsBetween() {
		return w.blocked(obligation.OwnerOf(w.ownerID()))
	}

	return nil
}

// readOwner reads the owner of a controlled object. If it is not in its place, that is taken note of.
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

	at, err := w.target.Assess(ctx, m.World, o)
	if err != nil {
		return plan.Owner{}, fmt.Errorf("find where the owner belongs: %w", err)
	}

	if o.Above = at.Above; !at.InPlace {
		m.Obligations.See(o)
	}

	return plan.Owner{Exists: true, Shard: o.Shard, Draining: o.Draining, Belongs: w.at.OwnerBelongs}, nil
}

// decide asks the plan.
func (m *Mover) decide(_ context.Context, w *walk) *obligation.Outcome {
	w.action = w.planned()

	return nil
}

// grace lets objects wait for shards that may come back at once.
func (m *Mover) grace(_ context.Context, w *walk) *obligation.Outcome {
	if w.action.TakenFrom == "" || w.action.Verb != plan.Assign {
		return nil
	}

	wait, reason := m.Obligations.Grace()
	if wait <= 0 {
		return nil
	}

	out := w.blocked(obligation.HeldBy(w.action.TakenFrom))
	out.RetryAfter, out.Reason = wait, reason

	return out
}

// confirm finds out whether the object may be taken from its shard without asking that, and until when.
func (m *Mover) confirm(ctx context.Context, w *walk) *obligation.Outcome {
	shard := w.action.TakenFrom
	if shard == "" {
		return nil
	}

	ctx, done := context.WithTimeout(ctx, confirmWithin)
	defer done()

	verdict, err := m.Guard.MayTake(ctx, shard)

	switch {
	case err != nil:
		out := w.blocked(obligation.HeldBy(shard))
		out.RetryAfter, out.Reason = askAgain, fmt.Sprintf("confirm that shard %s does not hold its Lease: %v", shard, err)

		return out
	case !verdict.Allowed:
		out := w.blocked(obligation.HeldBy(shard))
		out.RetryAfter, out.Reason = verdict.RetryAfter, verdict.Reason

		return out
	}

	m.Obligations.Free(shard)

	w.until = verdict.Until

	return nil
}

// gather lets all go first that follows the object.
func (m *Mover) gather(_ context.Context, w *walk) *obligation.Outcome {
	if !w.action.ChildrenFirst {
		return nil
	}

	var all bool
	if w.handover, all = m.Obligations.Gathered(w.object, w.action.To); !all {
		return w.blocked(obligation.FollowersOf(w.object.UID))
	}

	return nil
}

// grant takes a slot for a drain.
func (m *Mover) grant(_ context.Context, w *walk) *obligation.Outcome {
	if w.action.Verb == plan.Drain && !m.Obligations.Grant(w.object.ID, w.object.Shard) {
		return w.blocked(obligation.SlotOf(w.object.Shard))
	}

	return nil
}

// act writes what the plan says, or reports what the object waits for if the plan has nothing written.
func (m *Mover) act(ctx context.Context, w *walk) *obligation.Outcome {
	change, ok := w.change()
	if !ok {
		w.follows = m.followed(w)

		return w.waiting()
	}

	if !w.until.IsZero() {
		var cancel context.CancelFunc

		ctx, cancel = context.WithTimeout(ctx, w.until.Sub(m.Clock.Now()))
		defer cancel()
	}

	return m.write(ctx, w, change)
}

// write writes labels, and reports the object as it is then. If it has changed since it was seen, it is read and decided anew.
func (m *Mover) write(ctx context.Context, w *walk, change objects.Change) *obligation.Outcome {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	now, err := m.Objects.Label(limited, w.object, change)
	if apierrors.IsConflict(err) {
		return &obligation.Outcome{Object: &w.object, Event: obligation.Failed, Stale: true, Brief: true, Reason: "it changes all the time"}
	}

	if err != nil {
		out := failed(&w.object, err)
		out.Stale = true // it may have been carried out all the same

		return out
	}

	m.Moved(w.object, w.action.Verb)

	at, err := w.target.Assess(ctx, m.World, now)
	if now.Above = at.Above; err != nil {
		return failed(&now, err)
	}

	return w.written(now, at)
}

func (m *Mover) get(ctx context.Context, id objects.ID) (objects.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	return m.Objects.Get(ctx, id)
}
