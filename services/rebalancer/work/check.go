package work

import (
	"fmt"
	"maps"
	"reflect"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

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

// verify recounts everything and returns the first violated invariant.
func (t *Table) verify() error {
	n := count{
		lanes: map[*lane][2]int{}, permits: newPermits(), following: map[types.UID]sets.Set[*entry]{},
		queued: map[*entry]int{}, waits: map[Cause]int{}, turns: map[types.UID]int{},
	}

	for _, l := range t.lanes.all {
		for i := range l.due {
			for e := range l.due[i].all {
				n.queued[e]++
			}
		}
	}

	if len(n.queued) != t.phases[Due] {
		return fmt.Errorf("3: %d are queued, and %d are due", len(n.queued), t.phases[Due])
	}

	for id, e := range t.entries {
		if id != e.object.ID || e.phase == None || (e.phase == Due) != (n.queued[e] == 1) {
			return fmt.Errorf("3: %s is %s, is stored as %s, and is queued %d times", e.object.ID, e.phase, id, n.queued[e])
		}

		if e.queue == &e.lane.due[regular] && t.fitting(e) == &e.lane.due[urgent] {
			return fmt.Errorf("7: %s is urgent, and waits among others", id)
		}

		if err := e.verifyPermit(); err != nil {
			return err
		}

		n.add(e)
	}

	for uid, turn := range t.turns {
		if n.turns[uid] != turn.workers || turn.own && turn.workers > 1 {
			return fmt.Errorf("3: %d workers have the turn of %s, not %d; its own: %t",
				turn.workers, uid, n.turns[uid], turn.own)
		}
	}

	return t.verifyCounts(&n)
}

// verifyCounts compares the recounted values with the stored ones.
func (t *Table) verifyCounts(n *count) error {
	for c, w := range t.parked {
		if c.kind == kindPermit {
			n.permits.wanted.Insert(c.lane())
		}

		if w.timer.set() {
			n.timers++
		}

		if err := t.verifyWaiting(c, w, n.waits[c]); err != nil {
			return err
		}
	}

	if set := t.timers.all.Len(); n.timers != set {
		return fmt.Errorf("5: %d timers are set, not %d", set, n.timers)
	}

	for c, waiting := range n.waits {
		if t.parked[c] == nil {
			return fmt.Errorf("5: %d wait because %s, and the cause is unknown", waiting, c)
		}
	}

	if planned := t.permits.planned[0].Len() + t.permits.planned[1].Len(); n.planned != planned {
		return fmt.Errorf("4: %d planned moves count, not %d", planned, n.planned)
	}

	n.permits.turn, n.permits.owners, n.permits.planned = t.permits.turn, t.permits.owners, t.permits.planned

	for shard, lanes := range n.permits.lanes {
		for of, h := range lanes {
			if known := t.permits.lanes[shard][of]; known != nil {
				h.silent, h.since = known.silent, known.since
			}
		}
	}

	for _, l := range t.lanes.all {
		if is := [2]int{l.entries, l.failing}; n.lanes[l] != is {
			return fmt.Errorf("6: %s has %v obligations and failing ones, not %v", l, n.lanes[l], is)
		}
	}

	n.phases[None] = -len(t.entries)

	switch {
	case n.phases != t.phases || n.waiting != t.waiting:
		return fmt.Errorf("6: the recount is %v and %d waiting, not %v and %d", n.phases, n.waiting, t.phases, t.waiting)
	case !reflect.DeepEqual(n.permits, t.permits):
		return fmt.Errorf("4: the recount is %d permits of %v, not %d of %v",
			n.permits.inTime, n.permits.lanes, t.permits.inTime, t.permits.lanes)
	}

	return t.verifyFamilies(n.following)
}

// count contains the recounted values of a table.
type count struct {
	phases                   [Delayed + 1]int
	waiting, planned, timers int
	// lanes are the obligations and the failing ones.
	lanes     map[*lane][2]int
	permits   permits
	following map[types.UID]sets.Set[*entry]
	queued    map[*entry]int
	waits     map[Cause]int
	turns     map[types.UID]int
}

func (n *count) add(e *entry) {
	if n.phases[e.phase]++; e.turn != nil {
		n.turns[e.turn.of]++
	}

	of := n.lanes[e.lane]
	if of[0]++; e.failing() {
		of[1]++
	}

	n.lanes[e.lane] = of

	if e.holds != "" {
		n.permits.count(laneOf(e.holds, e), e.late, 1)
	}

	if e.planned != nil {
		n.planned++
	}

	if e.timer.set() {
		n.timers++
	}

	if e.phase == Parked {
		n.waits[e.cause]++

		if e.cause.kind == kindFollowers {
			n.waiting++
		}
	}

	for _, uid := range e.follows {
		insert(n.following, uid, e)
	}
}

// verifyPermit verifies invariant 4: an obligation with a permit carries the drain label, or is about to get it.
func (e *entry) verifyPermit() error {
	o := e.object

	switch {
	case e.holds != "" && e.since.IsZero():
		return fmt.Errorf("4: %s holds a permit without a start time", e.object.ID)
	case e.phase == Moving:
	case o.Draining && o.Shard != "" && e.holds != o.Shard, !o.Draining && e.holds != "" && e.phase != Due:
		return fmt.Errorf("4: %s is %s at %q, drain: %t, and holds a permit of %q",
			o.ID, e.phase, o.Shard, o.Draining, e.holds)
	}

	return nil
}

// verifyWaiting verifies invariant 5: every parked obligation will be woken.
func (t *Table) verifyWaiting(c Cause, w *waiting, n int) error {
	switch {
	case w.entries.Len() != n:
		return fmt.Errorf("5: %d wait because %s, not %d", n, c, w.entries.Len())
	case w.entries.Len() == 0 && !w.timer.set() && w.probe == nil:
		return fmt.Errorf("5: nothing waits because %s", c)
	case w.entries.Len() == 0:
	case c.kind == kindHeld && !w.timer.set() && (w.probe == nil || t.entries[w.probe.object.ID] != w.probe):
		return fmt.Errorf("5: %d wait because %s, and none retries", n, c)
	case c.kind == kindPermit && t.free(c.lane()):
		return fmt.Errorf("5: %d wait because %s, and a permit is free", w.entries.Len(), c)
	case c.kind == kindOwner && t.entries[c.owner] == nil:
		return fmt.Errorf("5: %d wait for %s, which is no obligation", w.entries.Len(), c.owner)
	}

	return nil
}

// verifyFamilies verifies invariant 9: families are of the obligations that know them, and followers are counted
// correctly.
func (t *Table) verifyFamilies(following map[types.UID]sets.Set[*entry]) error {
	for uid, f := range t.families {
		if f.uid != uid || f.owner.family != f || t.entries[f.owner.object.ID] != f.owner {
			return fmt.Errorf("9: the family of %s belongs to %s, which has another", uid, f.owner.object)
		}
	}

	if !maps.EqualFunc(following, t.following, sets.Set[*entry].Equal) {
		return fmt.Errorf("9: the recount of followers is %d, not %d", len(following), len(t.following))
	}

	return nil
}
