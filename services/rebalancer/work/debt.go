package work

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/internal/invariants"
)

// Debt is what has to be searched again, because it was not stored or not seen.
type Debt struct {
	// All requests a pass over all labeled objects.
	All bool
	// Unseen are the resources of which a pass has to visit all labeled objects, because drains were acknowledged and their objects
	// not seen.
	Unseen sets.Set[schema.GroupResource]
	// Relist requests a list of the objects without an available shard.
	Relist bool
	// Lost are shards whose objects have to be listed. Misplaced are shards at which a pass has to look.
	Lost, Misplaced []string
}

func (d *Debt) lose(shard string)     { d.Lost = append(d.Lost, shard) }
func (d *Debt) misplace(shard string) { d.Misplaced = append(d.Misplaced, shard) }

// Debt returns what is owed, and clears it. ok is false if nothing is owed.
func (t *Table) Debt() (d Debt, ok bool) {
	if invariants.Enabled {
		defer t.check()
	}

	t.searchIfRoom()

	d = t.debt
	t.debt = Debt{}

	slices.Sort(d.Lost)
	slices.Sort(d.Misplaced)

	return d, d.All || d.Unseen.Len() > 0 || d.Relist || len(d.Lost) > 0 || len(d.Misplaced) > 0
}

// Moved counts how often objects of a resource have moved from live shards, or were asked for there. If two counts are equal, none of
// its objects moved in between.
func (t *Table) Moved(of schema.GroupResource) uint64 { return t.moved[of] }

// Still reports whether there is no obligation of a resource. It is false while any obligation is not stored, because that may be one of
// the resource.
func (t *Table) Still(of schema.GroupResource) bool {
	return !t.dropped && t.owing == 0 &&
		!slices.ContainsFunc(t.lanes.all, func(l *lane) bool { return l.of == of && l.entries > 0 })
}
