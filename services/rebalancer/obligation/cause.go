package obligation

import (
	"maps"
	"slices"
	"time"

	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// Cause is what a parked object waits for. The zero value is no cause.
type Cause struct {
	kind  string
	shard string
	owner objects.ID
}

// The kinds of causes.
const (
	kindHeld  = "held"
	kindSlot  = "slot"
	kindOwner = "owner"
	kindTurn  = "turn"
)

// HeldBy says that a shard which is not available may still work on its objects.
func HeldBy(shard string) Cause { return Cause{kind: kindHeld, shard: shard} }

// SlotOf says that no more objects of a shard may be drained now. It is woken by the table itself.
func SlotOf(shard string) Cause { return Cause{kind: kindSlot, shard: shard} }

// Ready returns the number of objects that are due now.
func (t *Table) Ready() int { return t.tally.phases[Due] }

// Busy returns the number of objects that are due, or with a worker.
func (t *Table) Busy() int { return t.tally.phases[Due] + t.tally.phases[Moving] }

// OwnerOf says that the owner of a controlled object is not in its place. It is woken by the table itself, when the owner's
// obligation ends, or its labels change.
func OwnerOf(owner objects.ID) Cause {
	return Cause{kind: kindOwner, owner: anyVersion(owner)}
}

// TurnOf says that the object, or one that follows it, or whom it follows, is being decided about.
func TurnOf(id objects.ID) Cause { return Cause{kind: kindTurn, owner: id} }

// String returns the cause for people.
func (c Cause) String() string {
	switch c.kind {
	case kindHeld:
		return "shard " + c.shard + " may still work on it"
	case kindSlot:
		return "shard " + c.shard + " is giving up as many objects as it may at a time"
	case kindOwner:
		return "its owner " + c.owner.String() + " is on the move"
	}

	return "its turn has not come"
}

// waiting is what waits for one cause.
type waiting struct {
	entries []*entry // in order; those that wait no more are passed over
	n       int      // of them that wait
	// dropped counts those that found no room. Where they are is known by the cause.
	dropped int
	// try is when one of them tries again; zero if none does.
	try time.Time
	// reason says, for people, more than the cause does.
	reason string
}

// park notes what an obligation waits for. A cause that has changed since the worker looked is not waited for.
func (t *Table) park(now time.Time, e *entry, out Outcome) {
	w := t.waitingFor(out.Cause)

	if out.RetryAfter > 0 {
		w.try = now.Add(out.RetryAfter)
		t.timers.push(timer{at: w.try, cause: out.Cause})
	}

	if out.Reason != "" {
		w.reason = out.Reason // others wait without having asked, and know no more
	}

	w.add(e)
	t.tally.parked++

	switch c := out.Cause; {
	case c.kind == kindSlot && t.free(c.shard):
		t.wakeSlots()
	case c.kind == kindOwner && !t.known(c.owner):
		t.Wake(now, c)
	case t.tally.parked > t.limits.Parked:
		w.dropped++
		t.tally.dropped++
		t.end(now, e)
	}
}

// known reports whether there is an obligation for an object, in whatever version it was read.
func (t *Table) known(id objects.ID) bool {
	_, ok := t.tally.owners[anyVersion(id)]

	return ok
}

func anyVersion(id objects.ID) objects.ID {
	id.GVR.Version = ""

	return id
}

func (t *Table) waitingFor(c Cause) *waiting {
	w, ok := t.parked[c]
	if !ok {
		w = &waiting{}
		t.parked[c] = w

		if c.kind == kindSlot {
			t.slots.wanted[c.shard] = struct{}{}
		}
	}

	return w
}

// forget forgets a cause that nothing waits for.
func (t *Table) forget(c Cause) {
	delete(t.parked, c)

	if c.kind == kindSlot {
		delete(t.slots.wanted, c.shard)
	}
}

func (w *waiting) add(e *entry) {
	if len(w.entries) > 2*w.n+64 { // most of them wait no more
		w.entries = slices.DeleteFunc(w.entries, func(o *entry) bool { return o.phase != Parked || o.cause != e.cause })
	}

	w.entries = append(w.entries, e)
	w.n++
}

// unpark notes that an obligation waits no more.
func (t *Table) unpark(e *entry) {
	w := t.parked[e.cause]
	w.n--
	t.tally.parked--

	if w.n == 0 && w.dropped == 0 {
		t.forget(e.cause)
	}
}

// Waits reports whether anything waits for the cause.
func (t *Table) Waits(c Cause) bool { return t.parked[c] != nil }

// Held reports whether objects wait for the shard, and it is known when one of them tries again.
func (t *Table) Held(shard string) bool {
	w, ok := t.parked[HeldBy(shard)]

	return ok && !w.try.IsZero()
}

// Wake has all looked at that wait for the cause.
func (t *Table) Wake(now time.Time, c Cause) {
	w, ok := t.parked[c]
	if !ok {
		return
	}

	for _, e := range w.take(c) {
		t.move(e, Woken)
	}

	t.repay(c, w)
}

// repay has those looked for again that found no room while they waited.
func (t *Table) repay(c Cause, w *waiting) {
	if w.dropped == 0 {
		return
	}

	t.tally.dropped -= w.dropped
	w.dropped = 0

	if w.n == 0 {
		t.forget(c)
	}

	switch c.kind {
	case kindHeld:
		t.debt.lose(c.shard)
	case kindSlot:
		t.debt.misplace(c.shard)
	default:
		t.debt.All = true
		t.debt.Relist = true
	}
}

// take removes and returns all that wait.
func (w *waiting) take(c Cause) (all []*entry) {
	for _, e := range w.entries {
		if e.phase == Parked && e.cause == c {
			all = append(all, e)
		}
	}

	w.entries = nil

	return all
}

// wakeSlots has as many looked at as there are slots free, the shards in turn. They hold their slot from now on.
func (t *Table) wakeSlots() {
	if len(t.slots.wanted) == 0 {
		return
	}

	shards := slices.Sorted(maps.Keys(t.slots.wanted))
	shards = slices.DeleteFunc(shards, func(s string) bool { return !t.free(s) })

	for len(shards) > 0 && t.slots.inTime < t.limits.Drains {
		i, found := slices.BinarySearch(shards, t.slots.turn)
		if found {
			i++
		}

		shard := shards[i%len(shards)]
		t.slots.turn = shard

		if !t.wakeSlot(shard) || !t.free(shard) {
			shards = slices.DeleteFunc(shards, func(s string) bool { return s == shard })
		}
	}
}

// wakeSlot gives one object that waits for a slot of the shard its slot, and reports whether there was one.
func (t *Table) wakeSlot(shard string) bool {
	c := SlotOf(shard)
	w := t.parked[c]
	e := w.first(c)

	if e != nil {
		t.hold(e, shard)
		t.move(e, Woken)
	} else {
		t.repay(c, w)
	}

	return e != nil
}

// first removes and returns the first one that waits for the cause; nil if none does.
func (w *waiting) first(c Cause) *entry {
	for len(w.entries) > 0 {
		e := w.entries[0]
		w.entries = w.entries[1:]

		if e.phase == Parked && e.cause == c {
			return e
		}
	}

	return nil
}

// Expire wakes what was to wait until now.
func (t *Table) Expire(now time.Time) {
	for {
		next, ok := t.timers.first()
		if !ok || next.at.After(now) {
			return
		}

		t.timers.pop()

		if e := next.entry; e != nil {
			if e.timer == next.number && t.entries[e.object.ID] == e {
				e.stale = e.stale || e.phase == Draining
				t.move(e, Woken)
			}

			continue
		}

		if w, ok := t.parked[next.cause]; ok && w.try.Equal(next.at) {
			w.try = time.Time{}
			t.try(next.cause, w)
		}
	}
}

// try has one of those that wait for the cause try again. Where only the cause was kept, they are looked for.
func (t *Table) try(c Cause, w *waiting) {
	if e := w.first(c); e != nil {
		t.move(e, Woken)
		return
	}

	t.repay(c, w)
}

// Again has an object looked at whose turn has come.
func (t *Table) Again(id objects.ID) {
	e, ok := t.entries[id]

	switch {
	case !ok:
	case e.phase == Moving:
		e.again, e.inPlace, e.seen = true, false, ""
	case e.phase == Parked && e.cause == TurnOf(id):
		t.move(e, Woken)
	}
}

// Next returns when something will be due that is not now; ok is false if nothing will.
func (t *Table) Next() (at time.Time, ok bool) {
	next, ok := t.timers.first()

	return next.at, ok
}

// sorted returns the IDs of all obligations in an order that is always the same.
func (t *Table) sorted() []objects.ID {
	return slices.SortedFunc(maps.Keys(t.entries), compare)
}

// repayAll has everything looked for again that found no room.
func (t *Table) repayAll() {
	for c, w := range t.parked {
		t.repay(c, w)
	}
}
