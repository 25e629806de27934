package obligation

import (
	"container/heap"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/services/internal/invariants"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// Cause is what a parked object waits for. The zero value is no cause.
type Cause struct {
	kind  string
	shard string
	owner objects.ID
	uid   types.UID
}

// The kinds of causes.
const (
	kindHeld      = "held"
	kindSlot      = "slot"
	kindOwner     = "owner"
	kindFollowers = "followers"
	kindTurn      = "turn"
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
	case kindFollowers:
		return "what it controls goes before it"
	}

	return "its turn has not come"
}

// waiting is what waits for one cause.
type waiting struct {
	entries []place // in order; those that wait no more are passed over
	n       int     // of them that wait
	// dropped counts those that found no room, since the last pass over all began; before is what it was then. Where they are is known by
	// the cause, unless others is set.
	dropped, before int
	others          bool
	// try is when one of them tries again; zero if none does. probe is the one that does just now.
	try   time.Time
	probe *entry
	// reason says, for people, more than the cause does.
	reason string
}

// place is that of an obligation among those that wait for a cause.
type place struct {
	*entry

	number int
}

// waits reports whether the obligation has not left its place.
func (p place) waits() bool { return p.phase == Parked && p.place == p.number }

// park notes what an obligation waits for. A cause that has changed since the worker looked is not waited for.
func (t *Table) park(now time.Time, e *entry, out Outcome) {
	w := t.waitingFor(out.Cause)

	if out.RetryAfter > 0 {
		w.try = now.Add(out.RetryAfter)
		t.set(timer{at: w.try, cause: out.Cause})
	}

	if out.Reason != "" {
		w.reason = out.Reason // others wait without having asked, and know no more
	}

	w.add(e)
	t.tally.parked++

	if out.Cause.kind == kindFollowers {
		t.waitsBelow(e, true)
	}

	switch c := out.Cause; {
	case c.kind == kindSlot && t.free(c.shard):
		t.wakeSlots(now)
	case c.kind == kindOwner && !t.known(c.owner):
		t.wake(c)
	case c.kind == kindFollowers && t.together(e):
		t.wake(c)
	case c.kind == kindFollowers && e.follows != (objects.Lineage{}) && t.tally.between > t.limits.Parked:
		t.scatter(now, e)
	case c.kind == kindHeld && w.try.IsZero() && w.probe == nil:
		t.try(c, w) // or nobody would
	case c.kind != kindFollowers && t.tally.parked-t.tally.first > t.limits.Parked && (w.n > 1 || c.shard == ""):
		t.drop(now, e, w)
	}
}

// drop forgets an obligation but for its cause, along with those that wait for it: they would be woken by its end, find it out of its
// place, and wait for it, again and again.
func (t *Table) drop(now time.Time, e *entry, w *waiting) {
	t.without(w, 1)

	if c := OwnerOf(e.object.ID); t.Waits(c) {
		followers := t.parked[c]
		w.others = true
		t.without(w, t.found(followers))

		for _, o := range followers.take() {
			t.without(w, 1)
			t.scatter(now, o)
		}

		t.forget(c)
	}

	t.scatter(now, e)
}

// roomless is how many found no room, as far as is known: they are seen again by each pass.
func (w *waiting) roomless() int { return max(w.dropped, w.before) }

// without counts some more that found no room.
func (t *Table) without(w *waiting, n int) {
	t.tally.dropped -= w.roomless()
	w.dropped += n
	t.tally.dropped += w.roomless()
}

// found counts none any more, and returns how many there were.
func (t *Table) found(w *waiting) (n int) {
	n = w.roomless()
	w.dropped, w.before = 0, 0
	t.tally.dropped -= n

	return n
}

// Recount says that all labelled objects are about to be seen again, and so are those among them that found no room.
func (t *Table) Recount() {
	if invariants.Enabled {
		defer t.check()
	}

	for _, w := range t.parked {
		if w.dropped > 0 {
			t.tally.dropped -= w.roomless()
			w.dropped, w.before = 0, w.dropped
			t.tally.dropped += w.roomless()
		}
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
		w.entries = slices.DeleteFunc(w.entries, func(p place) bool { return !p.waits() })
	}

	w.entries = append(w.entries, place{e, e.place})
	w.n++
}

// unpark notes that an obligation waits no more.
func (t *Table) unpark(e *entry) {
	w := t.parked[e.cause]
	w.n--
	e.place++
	t.tally.parked--

	if e.cause.kind == kindFollowers {
		t.waitsBelow(e, false)
	}

	if w.n == 0 && w.roomless() == 0 {
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
func (t *Table) Wake(c Cause) {
	if invariants.Enabled {
		defer t.check()
	}

	t.wake(c)
}

func (t *Table) wake(c Cause) {
	w, ok := t.parked[c]
	if !ok {
		return
	}

	for _, e := range w.take() {
		t.move(e, Woken)
	}

	t.repay(c, w)
}

// repay has those looked for again that found no room while they waited.
func (t *Table) repay(c Cause, w *waiting) {
	if t.found(w) == 0 {
		return
	}

	if w.n == 0 {
		t.forget(c)
	}

	switch c.kind {
	case kindHeld:
		t.debt.lose(c.shard)
	case kindSlot:
		t.debt.misplace(c.shard)
	default:
		w.others = true
	}

	if w.others {
		t.debt.All, t.debt.Relist = true, true
		w.others = false
	}
}

// take removes and returns all that wait.
func (w *waiting) take() (all []*entry) {
	for _, p := range w.entries {
		if p.waits() {
			all = append(all, p.entry)
		}
	}

	w.entries = nil

	return all
}

// wakeSlots has as many looked at as there are slots free, the shards in turn. They hold their slot from now on.
func (t *Table) wakeSlots(now time.Time) {
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

		if !t.wakeSlot(now, shard) || !t.free(shard) {
			shards = slices.DeleteFunc(shards, func(s string) bool { return s == shard })
		}
	}
}

// wakeSlot gives one object that waits for a slot of the shard its slot, and reports whether there was one.
func (t *Table) wakeSlot(now time.Time, shard string) bool {
	c := SlotOf(shard)

	w, ok := t.parked[c]
	if !ok {
		return false
	}

	e := w.first()
	if e == nil {
		t.repay(c, w)
		return false
	}

	t.hold(now, e, shard)
	t.move(e, Woken)

	return true
}

// first removes and returns the first one that waits; nil if none does.
func (w *waiting) first() *entry {
	for len(w.entries) > 0 {
		p := w.entries[0]
		w.entries = w.entries[1:]

		if p.waits() {
			return p.entry
		}
	}

	return nil
}

// Expire wakes what was to wait until now.
func (t *Table) Expire(now time.Time) {
	if invariants.Enabled {
		defer t.check()
	}

	for {
		next, ok := t.firstTimer()
		if !ok || next.at.After(now) {
			return
		}

		heap.Pop(&t.timers.all)

		if e := next.entry; e != nil {
			e.stale = e.stale || e.phase == Draining
			t.move(e, Woken)

			continue
		}

		w := t.parked[next.cause]
		w.try = time.Time{}
		t.try(next.cause, w)
	}
}

// try has one of those that wait for the cause try again. Where only the cause was kept, they are looked for.
func (t *Table) try(c Cause, w *waiting) {
	if e := w.first(); e != nil {
		w.probe, e.probes = e, c
		t.move(e, Woken)

		return
	}

	t.repay(c, w)
}

// tried has another one try if an obligation that did has come to something else, so that nobody knows when to try again.
func (t *Table) tried(e *entry) {
	c := e.probes
	e.probes = Cause{}

	if w, ok := t.parked[c]; ok && w.probe == e {
		if w.probe = nil; w.try.IsZero() {
			t.try(c, w)
		}
	}
}

// Again has an object looked at whose turn has come.
func (t *Table) Again(id objects.ID) {
	if invariants.Enabled {
		defer t.check()
	}

	if e, ok := t.entries[id]; ok && e.phase == Moving {
		e.anew()
	}

	t.wake(TurnOf(id))
}

// Next returns when something will be due that is not now; ok is false if nothing will.
func (t *Table) Next() (at time.Time, ok bool) {
	next, ok := t.firstTimer()

	return next.at, ok
}

// sorted returns the IDs of all obligations in an order that is always the same.
func (t *Table) sorted() []objects.ID {
	return slices.SortedFunc(maps.Keys(t.entries), objects.Compare)
}

// repayAll has everything looked for again that found no room.
func (t *Table) repayAll() {
	for c, w := range t.parked {
		t.repay(c, w)
	}
}
