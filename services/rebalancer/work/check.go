package work

import (
	"fmt"

	"github.com/clusterring/clusterring/services/internal/invariants"
)

// check panics if an invariant does not hold, in programs that are built to check invariants.
func (t *Table) check() {
	if !t.pace.Due(len(t.entries) + len(t.parked)) {
		return
	}

	if err := t.verify(); err != nil {
		invariants.Violated("%v", err)
	}
}

// verify recounts everything and returns a violated invariant.
func (t *Table) verify() error {
	for id, e := range t.entries {
		o := e.object

		switch {
		case id != o.ID:
			return fmt.Errorf("3: %s is stored as %s", e, id)
		case e.queue == &e.lane.due[regular] && t.fitting(e) == &e.lane.due[urgent]:
			return fmt.Errorf("7: %s is urgent, and waits among others", e)
		case e.holds != "" && e.since.IsZero():
			return fmt.Errorf("4: %s holds a permit without a start time", e)
		case e.phase == Moving:
		case o.Draining && o.Shard != "" && e.holds != o.Shard, !o.Draining && e.holds != "" && e.phase != Due:
			return fmt.Errorf("4: %s is %s at %q, drain: %t, and holds a permit of %q",
				e, e.phase, o.Shard, o.Draining, e.holds)
		}
	}

	for uid, turn := range t.turns {
		if turn.own && turn.workers > 1 {
			return fmt.Errorf("3: %d workers have the main object %s", turn.workers, uid)
		}
	}

	for c, w := range t.parked {
		switch n := w.entries.Len(); {
		case n == 0 && !w.timer.isSet() && w.probe == nil:
			return fmt.Errorf("5: nothing waits because %s", c)
		case n == 0:
		case c.kind == kindHeld && !w.timer.isSet() && (w.probe == nil || t.entries[w.probe.object.ID] != w.probe):
			return fmt.Errorf("5: %d wait because %s, and none retries", n, c)
		case c.kind == kindPermit && t.free(c):
			return fmt.Errorf("5: %d wait because %s, and a permit is free", n, c)
		case c.kind == kindOwner && t.entries[c.owner] == nil:
			return fmt.Errorf("5: %d wait for %s, which is no obligation", n, c.owner)
		}
	}

	for uid, f := range t.families {
		if o := f.owner.object; o.UID != uid || t.entries[o.ID] != f.owner {
			return fmt.Errorf("9: the family of %s belongs to %s, which is no such obligation", uid, o)
		}
	}

	n := counts{}
	t.stored(n)
	t.recount(n)

	for c, off := range n {
		if off != 0 {
			return fmt.Errorf("%d: %d too many %s %v", c.invariant, off, c.what, c.of)
		}
	}

	return nil
}

// counts are how much more a table stores than a recount finds.
type counts map[counted]int

// counted is something that is counted, and the invariant that it belongs to.
type counted struct {
	invariant int
	what      string
	of        any
}

func (n counts) add(some, invariant int, what string, of any) {
	if some != 0 {
		n[counted{invariant, what, of}] += some
	}
}

// stored adds all counts as they are stored.
func (t *Table) stored(n counts) {
	n.add(t.permits.inTime, 4, "permits", nil)
	n.add(t.timers.Len(), 5, "timers", nil)
	n.add(t.waiting, 6, "wait for followers", nil)

	for phase, obligations := range t.phases {
		n.add(obligations, 6, "are", phases[phase])
	}

	for _, l := range t.lanes.all {
		n.add(l.entries, 6, "obligations of", l)
		n.add(l.failing, 6, "failing of", l)
		n.add(l.working, 6, "with workers of", l)
		n.add(l.planned, 4, "planned moves of", l)

		for shard, h := range l.held {
			n.add(h.inTime, 4, "permits of "+shard+" for", l)
			n.add(h.late, 4, "late drains at "+shard+" of", l)
		}

		for i := range l.due {
			for e := range l.due[i].all {
				n.add(1, 3, "times due is", e)
			}
		}
	}

	for c, w := range t.parked {
		n.add(w.entries.Len(), 5, "wait because", c)
	}

	for c := range t.permits.wanted {
		n.add(1, 5, "cause:", c)
	}

	for uid, turn := range t.turns {
		n.add(turn.workers, 3, "workers have the turn of", uid)
	}

	for uid, followers := range t.following {
		for e := range followers {
			n.add(1, 9, "times "+string(uid)+" is followed by", e)
		}
	}
}

// recount subtracts the same counts, recounted from the obligations and their causes.
func (t *Table) recount(n counts) {
	found := func(is bool, invariant int, what string, of any) {
		if is {
			n.add(-1, invariant, what, of)
		}
	}
	found(t.paused.isSet(), 5, "timers", nil)
	found(t.followers.next.isSet(), 5, "timers", nil)

	for c, w := range t.parked {
		found(w.timer.isSet(), 5, "timers", nil)
		found(c.kind == kindPermit, 5, "cause:", c)
	}

	n.add(len(t.entries), 6, "are", phases[InPlace])

	for _, e := range t.entries {
		found(true, 6, "are", phases[e.phase])
		found(e.phase == Due, 3, "times due is", e)
		found(true, 6, "obligations of", e.lane)
		found(e.failing(), 6, "failing of", e.lane)
		found(e.phase == Moving, 6, "with workers of", e.lane)
		found(e.timer.isSet(), 5, "timers", nil)
		found(e.planned.isSet(), 5, "timers", nil)
		found(e.planned.isSet(), 4, "planned moves of", e.lane)

		if e.holds != "" {
			found(!e.late, 4, "permits", nil)
			found(!e.late, 4, "permits of "+e.holds+" for", e.lane)
			found(e.late, 4, "late drains at "+e.holds+" of", e.lane)
		}

		if e.phase == Parked {
			found(true, 5, "wait because", e.cause)
			found(e.cause.kind == kindFollowers, 6, "wait for followers", nil)
		}

		if e.turn != nil {
			found(true, 3, "workers have the turn of", e.turn.of)
		}

		for _, uid := range e.follows {
			found(uid != "", 9, "times "+string(uid)+" is followed by", e)
		}
	}
}
