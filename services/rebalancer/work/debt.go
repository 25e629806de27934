package work

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Debt is what has to be searched again, because it was not stored or not seen.
type Debt struct {
	// All requests a pass over all labeled objects.
	All bool
	// Unseen are the resources of which a pass has to visit all labeled objects, because drains were acknowledged and
	// their objects not seen.
	Unseen sets.Set[schema.GroupResource]
	// Relist requests a list of the objects without an available shard.
	Relist bool
}

// Debt returns what is owed, and clears it. ok is false if nothing is owed.
func (t *Table) Debt() (d Debt, ok bool) {
	// If less room were free, most of what found none would find none again.
	if half := t.limits.Parked / 2; t.missing && t.stuck()+t.Ready() <= half && t.waiting <= t.limits.Active+half {
		t.Search()
	}

	d = t.debt
	t.debt = Debt{}

	return d, d.All || d.Unseen.Len() > 0 || d.Relist
}

// Moved counts how often objects of a resource have moved from live shards, or were asked for there. If two counts are
// equal, none of its objects moved in between.
func (t *Table) Moved(of schema.GroupResource) uint64 { return t.lane(of).moved }

// Still reports whether there is no obligation of a resource. It is false while any obligation is not stored, because
// that may be one of the resource.
func (t *Table) Still(of schema.GroupResource) bool {
	return !t.missing && t.lane(of).entries == 0
}

// stuck returns the number of stored obligations of which nobody knows when they can move.
func (t *Table) stuck() int { return t.phases[Parked] - t.waiting + t.failing() + t.behindHung() }

// beyondFailing reports whether an obligation that has failed finds no room, because too many others of its resource
// are failing. A drain does: it holds a permit.
func (t *Table) beyondFailing(e *entry) bool {
	return t.stuck() >= t.limits.Parked && e.lane.failing > 0 && !e.failing() && !e.object.Draining
}

// drop drops an obligation that finds no room, and those that wait for it: its end would wake them, and they would wait
// for it again, repeatedly. It does not wake the objects that it follows either.
func (t *Table) drop(now time.Time, e *entry) {
	if below := t.parked[OwnerOf(e.object.ID)]; below != nil {
		for _, o := range slices.Collect(below.all) {
			t.drop(now, o)
		}
	}

	t.missing = true

	for _, uid := range e.follows {
		if f := t.families[uid]; f != nil {
			f.state = idle
		}
	}

	t.end(now, e)
}

// Search requests a search for everything that found no room.
func (t *Table) Search() {
	defer t.check()

	if !t.missing {
		return
	}

	t.debt.All, t.debt.Relist, t.missing = true, true, false

	for _, f := range t.sought(idle) {
		t.seek(f, true)
	}
}
