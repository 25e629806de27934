// Package move takes one object towards its place.
//
// It reads what a decision needs to know that nobody has seen yet: the object, if it has changed; the owner of a controlled one; and,
// through the guard, the Lease of a shard that loses the object without being asked. It asks the plan, writes, and reports what it
// has seen as an [obligation.Outcome]. It keeps nothing.
package move

import (
	"cmp"
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

// Move does what the plan says about one object now. The target is asked for again when the object's turn has come.
func (m *Mover) Move(ctx context.Context, target func() *placement.Target, job obligation.Job) obligation.Outcome {
	if !job.Stale {
		if _, out := m.look(ctx, target(), job.Object); out != nil {
			return *out
		}
	}

	// Before anything is asked: the turn may be long in coming, and what is found out, of the owner or of a Lease, is acted on without a
	// pause.
	leave, err := m.Objects.Enter(ctx)
	if err != nil {
		return failed(nil, err)
	}
	defer leave()

	o := job.Object

	if job.Stale {
		if o, err = m.get(ctx, o.ID); err != nil {
			return failed(nil, err)
		}
	}

	return m.step(ctx, target(), o)
}

// look finds out where an object belongs. If that is all that there is to do now, it returns the outcome. It asks nobody.
func (m *Mover) look(ctx context.Context, t *placement.Target, o objects.Object) (placement.Assessment, *obligation.Outcome) {
	a, err := t.Assess(ctx, m.World, o)
	o.Above = a.Above

	var out obligation.Outcome

	switch {
	case err != nil:
		out = failed(&o, err)
	case a.InPlace:
		out = obligation.Outcome{Object: &o, Event: obligation.SeenInPlace}
	case m.waitsForOwner(t, a, o):
		out = m.blocked(o, a)
	case o.Shard != "" && !t.View.Available(o.Shard) && m.Obligations.Held(o.Shard):
		out = obligation.Outcome{Object: &o, Event: obligation.Blocked, Cause: obligation.HeldBy(o.Shard)}
	default:
		return a, nil
	}

	return a, &out
}

// step takes an object one step towards its place.
func (m *Mover) step(ctx context.Context, t *placement.Target, o objects.Object) obligation.Outcome {
	a, out := m.look(ctx, t, o)
	if out != nil {
		return *out
	}

	o.Above = a.Above

	end, ok := m.Turn(a.OwnerID(o), o.ID)
	if !ok {
		return obligation.Outcome{Object: &o, Event: obligation.Blocked, Cause: obligation.TurnOf(o.ID)}
	}
	defer end()

	in := a.Input(o)
	if a.Owner != nil && in.NeedsOwner() {
		var err error
		if in.Owner, err = m.owner(ctx, t, a); err != nil {
			return failed(&o, err)
		}

		if m.ownerIsBetween(t, a, in.Owner) {
			return m.blocked(o, a)
		}
	}

	return m.carryOut(ctx, t, step{object: o, at: a, action: plan.Decide(t.View, in)})
}

// waitsForOwner reports whether a controlled object has to wait until its owner is in its place, or is about to be, and whether that is known
// without a request: the object has a shard that may as well keep it, or the owner has none that it could get.
func (m *Mover) waitsForOwner(t *placement.Target, a placement.Assessment, o objects.Object) bool {
	if a.Owner == nil || !a.Belongs || o.Draining {
		return false
	}

	owner, onTheMove := m.Obligations.Has(a.OwnerID(o))

	return onTheMove && owner.UID == a.Owner.UID && !m.Obligations.Given(owner.ID, owner.UID) &&
		(t.View.Available(o.Shard) || !t.View.Available(owner.Shard))
}

// ownerIsBetween reports whether an owner has no shard that it could be followed to, and is not yet about to get one.
func (m *Mover) ownerIsBetween(t *placement.Target, a placement.Assessment, owner plan.Owner) bool {
	return a.Belongs && owner.Exists && !t.View.Available(owner.Shard) && len(t.View.AvailableShards()) > 0 &&
		!m.Obligations.Given(a.OwnerID(objects.Object{}), a.Owner.UID)
}

func (m *Mover) blocked(o objects.Object, a placement.Assessment) obligation.Outcome {
	return obligation.Outcome{Object: &o, Event: obligation.Blocked, Cause: obligation.OwnerOf(a.OwnerID(o))}
}

// owner says where the owner of a controlled object is. It is read, unless it is known that nobody works on it: then it is our turn to give it a
// shard. If it is not in its place, that is taken note of.
func (m *Mover) owner(ctx context.Context, t *placement.Target, a placement.Assessment) (plan.Owner, error) {
	known, onTheMove := m.Obligations.Has(a.OwnerID(objects.Object{}))
	if onTheMove && m.Obligations.Given(known.ID, a.Owner.UID) {
		return plan.Owner{Exists: true, Shard: known.Shard, Draining: known.Draining, Belongs: a.OwnerBelongs}, nil
	}

	o, err := m.get(ctx, a.OwnerID(objects.Object{}))

	switch {
	case resources.IsGone(err):
		return plan.Owner{}, nil
	case err != nil:
		return plan.Owner{}, fmt.Errorf("find the owner: %w", err)
	case o.UID != a.Owner.UID:
		return plan.Owner{}, nil
	}

	at, err := t.Assess(ctx, m.World, o)
	if err != nil {
		return plan.Owner{}, fmt.Errorf("find where the owner belongs: %w", err)
	}

	if o.Above = at.Above; !at.InPlace {
		m.Obligations.See(o)
	}

	return plan.Owner{Exists: true, Shard: o.Shard, Draining: o.Draining, Belongs: a.OwnerBelongs}, nil
}

func (m *Mover) get(ctx context.Context, id objects.ID) (objects.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	return m.Objects.Get(ctx, id)
}

// step is what the plan says about an object.
type step struct {
	object objects.Object
	at     placement.Assessment
	action plan.Action
}

// carryOut does one step, or says what it waits for.
func (m *Mover) carryOut(ctx context.Context, t *placement.Target, s step) obligation.Outcome {
	o := s.object

	from := s.action.TakenFrom
	if from != "" && s.action.Verb == plan.Assign {
		if wait, reason := m.Obligations.Grace(); wait > 0 {
			return obligation.Outcome{Object: &o, Event: obligation.Blocked, Cause: obligation.HeldBy(from), RetryAfter: wait, Reason: reason}
		}
	}

	if from != "" {
		limited, cancel, held := m.confirm(ctx, from)
		if held != nil {
			held.Object = &o
			return *held
		}
		defer cancel()

		ctx = limited
	}

	var handover v1alpha1.Handover

	if s.action.ChildrenFirst {
		var all bool
		if handover, all = m.Obligations.Gathered(o, s.action.To); !all {
			return obligation.Outcome{Object: &o, Event: obligation.Blocked, Cause: obligation.FollowersOf(o.UID)}
		}
	}

	switch s.action.Verb {
	case plan.Assign:
		change := objects.Change{Shard: s.action.To, RemoveDrain: o.Draining}
		if s.action.ChildrenFirst {
			change.Handover = new(handover.String())
		}

		return m.write(ctx, t, s, change)
	case plan.Withdraw:
		return m.write(ctx, t, s, objects.Change{RemoveDrain: true})
	case plan.Release:
		return m.write(ctx, t, s, objects.Change{RemoveShard: o.Labelled, RemoveDrain: o.Draining})
	case plan.Drain:
		if !m.Obligations.Grant(o.ID, o.Shard) {
			return obligation.Outcome{Object: &o, Event: obligation.Blocked, Cause: obligation.SlotOf(o.Shard)}
		}

		return m.write(ctx, t, s, objects.Change{Drain: cmp.Or(s.action.To, v1alpha1.DrainValue)})
	case plan.AwaitAcknowledgement, plan.AwaitShard, plan.None:
	}

	return m.await(s)
}

// await says what an object waits for that cannot be written to now.
func (m *Mover) await(s step) obligation.Outcome {
	o := s.object

	if s.at.Owner != nil {
		if _, onTheMove := m.Obligations.Has(s.at.OwnerID(o)); onTheMove {
			return m.blocked(o, s.at)
		}
	}

	switch {
	case s.action.Verb != plan.AwaitAcknowledgement:
		return obligation.Outcome{Object: &o, Event: obligation.SeenInPlace} // it is where its owner is, or can be nowhere else
	case s.at.Role == resources.Main:
		return obligation.Outcome{Object: &o, Event: obligation.Asked}
	}

	// The owner has come to its place since it was looked at, or is about to be seen.
	return obligation.Outcome{
		Object: &o, Event: obligation.Blocked, Cause: obligation.OwnerOf(s.at.OwnerID(o)), RetryAfter: ownerSoon,
	}
}

// confirm finds out whether objects may be taken from a shard without asking it, and for how long. If not, held says so.
func (m *Mover) confirm(ctx context.Context, shard string) (limited context.Context, cancel func(), held *obligation.Outcome) {
	reading, done := context.WithTimeout(ctx, confirmWithin)
	defer done()

	verdict, err := m.Guard.MayTake(reading, shard)

	switch {
	case err != nil:
		return nil, nil, &obligation.Outcome{
			Event: obligation.Blocked, Cause: obligation.HeldBy(shard), RetryAfter: askAgain,
			Reason: fmt.Sprintf("confirm that shard %s does not hold its Lease: %v", shard, err),
		}
	case !verdict.Allowed:
		return nil, nil, &obligation.Outcome{
			Event: obligation.Blocked, Cause: obligation.HeldBy(shard), RetryAfter: verdict.RetryAfter, Reason: verdict.Reason,
		}
	}

	m.Obligations.Free(shard)

	limited, cancel = context.WithTimeout(ctx, verdict.Until.Sub(m.Clock.Now()))

	return limited, cancel, nil
}

// write writes labels, and reports the object as it is then. If it has changed since it was seen, it is read and decided anew.
func (m *Mover) write(ctx context.Context, t *placement.Target, s step, change objects.Change) obligation.Outcome {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	now, err := m.Objects.Label(limited, s.object, change)
	if apierrors.IsConflict(err) {
		return obligation.Outcome{Object: &s.object, Event: obligation.Failed, Stale: true, Brief: true, Reason: "it changes all the time"}
	}

	if err != nil {
		out := failed(&s.object, err)
		out.Stale = true // it may have been carried out all the same

		return out
	}

	m.Moved(s.object, s.action.Verb)

	return m.seen(ctx, t, s, now)
}

// seen reports an object as it is after a write.
func (m *Mover) seen(ctx context.Context, t *placement.Target, s step, now objects.Object) obligation.Outcome {
	a, err := t.Assess(ctx, m.World, now)
	now.Above = a.Above

	switch {
	case err != nil:
		return failed(&now, err)
	case a.InPlace:
		return obligation.Outcome{Object: &now, Event: obligation.SeenInPlace}
	case s.action.Verb == plan.Drain && now.Draining:
		return obligation.Outcome{Object: &now, Event: obligation.Asked}
	case now.Shard != s.object.Shard || now.Draining != s.object.Draining:
		return obligation.Outcome{Object: &now, Event: obligation.Woken} // a step further
	}

	return obligation.Outcome{Object: &now, Event: obligation.Failed, Reason: "something takes back what is written"}
}

// failed reports an error of a request. That an object is gone is none.
func failed(o *objects.Object, err error) obligation.Outcome {
	if resources.IsGone(err) {
		return obligation.Outcome{Event: obligation.SeenInPlace}
	}

	return obligation.Outcome{Object: o, Event: obligation.Failed, Reason: err.Error(), Stale: o == nil}
}
