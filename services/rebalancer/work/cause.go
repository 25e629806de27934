package work

import (
	"iter"
	"slices"
	"time"

	"github.com/google/btree"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// Cause is what a parked object waits for. The zero value is no cause.
type Cause struct {
	kind  string
	shard string
	of    schema.GroupResource
	owner feed.ID
	uid   types.UID
}

// The kinds of causes.
const (
	kindHeld      = "held"
	kindPermit    = "permit"
	kindOwner     = "owner"
	kindFollowers = "followers"
	kindTurn      = "turn"
)

// HeldBy is the cause that a shard which is not available may still work on its objects.
func HeldBy(shard string) Cause { return Cause{kind: kindHeld, shard: shard} }

// PermitOf is the cause that no more objects of a resource may be drained at a shard now. The table itself wakes it.
func PermitOf(shard string, of schema.GroupResource) Cause {
	return Cause{kind: kindPermit, shard: shard, of: of}
}

// OwnerOf is the cause that the owner of a controlled object is not in its place. The table itself wakes it when the
// obligation of the owner ends, or when the labels of the owner change.
func OwnerOf(owner feed.ID) Cause { return Cause{kind: kindOwner, owner: owner} }

// TurnOf is the cause that workers have the main object with this UID, or objects that follow it. The table itself
// wakes it.
func TurnOf(main types.UID) Cause { return Cause{kind: kindTurn, uid: main} }

// String returns the cause as a text for messages.
func (c Cause) String() string {
	switch c.kind {
	case kindHeld:
		return "shard " + c.shard + " may still work on it"
	case kindPermit:
		return "shard " + c.shard + " is already releasing as many " + c.of.String() + " as it may at a time"
	case kindOwner:
		return "its owner " + c.owner.String() + " is on the move"
	case kindFollowers:
		return "objects that follow it have to move first"
	}

	return "a related object is being moved"
}

// waiting contains the obligations that wait for one cause.
type waiting struct {
	queue
	// timer is the time of the next retry. probe is the obligation that is retrying now.
	timer timer
	probe *entry
	// reason is a text that is more specific than the cause.
	reason string
	// dropped reports whether others waited for the cause, and found no room.
	dropped bool
}

// park makes an obligation wait for its cause, unless the cause has changed since the worker checked it.
func (t *Table) park(now time.Time, e *entry, out Outcome) {
	if out.Cause.kind == kindFollowers {
		t.gather(now, e, out.To)
	}

	c := out.Cause
	w := t.waitingFor(c)

	if out.RetryAfter > 0 {
		t.set(&w.timer, now.Add(out.RetryAfter), func(time.Time) { t.try(c, w) })
	}

	if out.Reason != "" {
		w.reason = out.Reason // others wait without having checked, and have no reason
	}

	w.push(e)

	if out.Cause.kind == kindFollowers {
		t.waiting++
	}

	switch {
	case c.kind == kindPermit && t.free(c):
		t.grantNext(now)
	case c.kind == kindOwner && t.entries[c.owner] == nil:
		t.wake(c)
	case c.kind == kindFollowers && out.RetryAfter == 0 && t.gathered(t.familyOf(e)):
		t.wake(c)
	case c.kind == kindFollowers && e.follows != (feed.Lineage{}) && t.waiting > t.limits.Active+t.limits.Parked:
		t.drop(now, e)
	case c.kind == kindHeld && !w.timer.isSet() && w.probe == nil:
		t.try(c, w) // otherwise none would retry
	case c.kind != kindFollowers && t.stuck() > t.limits.Parked && (w.entries.Len() > 1 || c.shard == ""):
		w.dropped = c.shard != ""
		t.drop(now, e)
	}
}

func (t *Table) waitingFor(c Cause) *waiting {
	w, ok := t.parked[c]
	if !ok {
		w = &waiting{}
		t.parked[c] = w

		if c.kind == kindPermit {
			t.permits.wanted.Insert(c)
		}
	}

	return w
}

// forget drops a cause that no obligation waits for. Those that found no room may be able to move now.
func (t *Table) forget(c Cause) {
	w := t.parked[c]
	t.stop(&w.timer)
	delete(t.parked, c)

	if w.dropped { // only a pass finds objects of an available shard
		t.debt.All, t.debt.Relist = t.debt.All || t.available(c.shard), true
	}

	if c.kind == kindPermit {
		t.permits.wanted.Delete(c)
	}
}

// unpark records that an obligation no longer waits.
func (t *Table) unpark(e *entry) {
	w := t.parked[e.cause]
	e.unqueue()

	if e.cause.kind == kindFollowers {
		t.waiting--
	}

	// If it retries also for others that found no room, it tells whether these have to be searched.
	if w.entries.Len() == 0 && (w.probe == nil || !w.dropped) {
		t.forget(e.cause)
	}
}

// Waits reports whether any obligation waits for the cause.
func (t *Table) Waits(c Cause) bool { return t.parked[c] != nil }

// Held reports whether obligations wait for the shard, and a retry is scheduled.
func (t *Table) Held(shard string) bool {
	w, ok := t.parked[HeldBy(shard)]

	return ok && w.timer.isSet()
}

// Wake wakes all obligations that wait for the cause.
func (t *Table) Wake(c Cause) {
	defer t.check()

	t.wake(c)
}

func (t *Table) wake(c Cause) {
	w, ok := t.parked[c]
	if !ok {
		return
	}

	for _, e := range slices.Collect(w.all) {
		if e.queue == &w.queue { // or another wake has taken it along
			t.move(e, Due)
		}
	}

	if t.parked[c] == w {
		t.forget(c)
	}
}

// Expire does everything whose time has come.
func (t *Table) Expire(now time.Time) {
	defer t.check()

	for {
		next, some := t.timers.Min()
		if !some || next.at.After(now) {
			return
		}

		t.stop(next)
		next.due(now)
	}
}

// try lets one of the obligations with the cause retry. If none is stored, their objects are searched.
func (t *Table) try(c Cause, w *waiting) {
	if w.probe = w.first(); w.probe == nil {
		t.forget(c)
	} else {
		t.move(w.probe, Due)
	}
}

// tried lets another obligation retry if one that did has ended up in another state, so that no retry is scheduled. c
// is the cause that it had.
func (t *Table) tried(e *entry, c Cause) {
	if w := t.parked[c]; w != nil && w.probe == e {
		if w.probe = nil; !w.timer.isSet() {
			t.try(c, w)
		}
	}
}

// Next returns when [Table.Expire] has something to do next; ok is false if it never has.
func (t *Table) Next() (at time.Time, ok bool) {
	if next, some := t.timers.Min(); some {
		return next.at, true
	}

	return time.Time{}, false
}

// sorted returns obligations in an order that can be replayed.
func sorted(all iter.Seq[*entry]) []*entry {
	return slices.SortedFunc(all, func(a, b *entry) int { return feed.Compare(a.object.ID, b.object.ID) })
}

// timer is a time at which something is due. Timers are sorted by time, and then by the order in which they were set.
type timer struct {
	at  time.Time
	due func(now time.Time)
	// order is its number among all timers that were ever set; 0 if it is not set.
	order int
}

func newTimers() *btree.BTreeG[*timer] {
	return btree.NewG(32, func(a, b *timer) bool { //nolint:mnd // a usual degree
		return a.at.Before(b.at) || a.at.Equal(b.at) && a.order < b.order
	})
}

// isSet reports whether the time is still to come.
func (n *timer) isSet() bool { return n.order > 0 }

// set sets a timer, or sets it to another time.
func (t *Table) set(n *timer, at time.Time, due func(now time.Time)) {
	t.stop(n)
	t.timed++
	*n = timer{at: at, due: due, order: t.timed}
	t.timers.ReplaceOrInsert(n)
}

// stop stops a timer, and reports whether it was set.
func (t *Table) stop(n *timer) (was bool) {
	if was = n.isSet(); was {
		t.timers.Delete(n)
		n.order = 0
	}

	return was
}

// at wakes an obligation at a time. A drain of which nothing was reported until then is read.
func (t *Table) at(e *entry, at time.Time) {
	t.set(&e.timer, at, func(time.Time) {
		e.stale = e.stale || e.phase == Draining
		t.move(e, Due)
	})
}
