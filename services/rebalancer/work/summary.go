package work

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
)

// Summary summarizes the obligations of a table.
type Summary struct {
	// Unassigned is the number of objects without an available shard. Misplaced is the number of objects at the wrong
	// available shard that are not being drained. Draining is the number of objects that carry the drain label.
	Unassigned, Misplaced, Draining int
	// Late is the number of drains that were not acknowledged in time. LateExample is one of them, with its shard; one
	// that is not among the Silent if there is one.
	Late        int
	LateExample string
	// Silent are the shards that acknowledge no drains of a resource, those with the most late drains first.
	Silent []Silent
	// Blocked is the number of objects that cannot move now. BlockedExample is one of them, with the reason, and one that
	// does not only wait for its owner if there is one.
	Blocked        int
	BlockedExample string
	// Failing is the number of objects whose requests have failed for seconds. FailingExample is one of them, with the
	// last error.
	Failing        int
	FailingExample string
	// More reports whether there are more objects than the table stores.
	More bool
	// Hanging are the resources whose writes the API server does not answer, the one that has hung for longest first.
	Hanging []Hanging
	// Resources are the numbers of all these objects by resource, and Problems of those that are late, blocked, or
	// failing. Asked are the numbers of objects with the drain label by the available shards that they are at. The largest
	// numbers come first.
	Resources, Problems, Asked []Share
	// Lost are the shards that are not available and still have objects, as far as is known; sorted.
	Lost []string
}

// Share is how many objects are of one resource, or at one shard.
type Share struct {
	Of string
	N  int
}

// shares returns the counts, the largest first.
func shares[K comparable](counts map[K]int, name func(K) string) []Share {
	var all []Share
	for k, n := range counts {
		all = append(all, Share{Of: name(k), N: n})
	}

	slices.SortFunc(all, func(a, b Share) int { return cmp.Or(cmp.Compare(b.N, a.N), cmp.Compare(a.Of, b.Of)) })

	return all
}

// example is the oldest of some obligations, or of those that matter more.
type example struct {
	entry *entry
	minor bool
}

// offer offers another one, which may matter less.
func (x *example) offer(e *entry, minor bool) {
	if x.entry == nil || x.minor && !minor || x.minor == minor && e.number < x.entry.number {
		x.entry, x.minor = e, minor
	}
}

// place is a shard, and what is known about its objects.
type place struct {
	works        bool
	all, drained int
}

// Summary returns a summary of the obligations. It visits all of them, which takes milliseconds if the table is full.
func (t *Table) Summary() Summary {
	s := Summary{More: t.missing.any, Silent: t.permits.silent(), Hanging: t.hanging()}
	places, problems := map[string]*place{}, map[*lane]int{}

	var late, blocked, failing example

	for _, e := range t.entries {
		at := places[e.object.Shard]
		if at == nil {
			at = &place{works: t.available(e.object.Shard)}
			places[e.object.Shard] = at
		}

		at.all++

		switch {
		case e.object.Draining:
			s.Draining++
			at.drained++
		case at.works:
			s.Misplaced++
		default:
			s.Unassigned++
		}

		isBlocked, isFailing := e.blocked(), e.failing()

		if e.late {
			s.Late++
			late.offer(e, t.permits.deaf(laneOf(e.holds, e)))
		}

		if isBlocked {
			s.Blocked++
			blocked.offer(e, e.phase == Parked && e.cause.kind == kindOwner)
		}

		if isFailing {
			s.Failing++
			failing.offer(e, false)
		}

		if e.late || isBlocked || isFailing {
			problems[e.lane]++
		}
	}

	if e := late.entry; e != nil {
		s.LateExample = e.object.String() + " at shard " + e.holds
	}

	s.BlockedExample, s.FailingExample = t.why(blocked.entry), t.why(failing.entry)
	s.Resources, s.Problems = t.resources(), shares(problems, (*lane).String)
	s.Lost, s.Asked = t.shards(places)

	return s
}

// resources returns the numbers of obligations by resource.
func (t *Table) resources() []Share {
	counts := map[*lane]int{}

	for _, l := range t.lanes.all {
		if l.entries > 0 {
			counts[l] = l.entries
		}
	}

	return shares(counts, (*lane).String)
}

// shards returns the shards that are not available and have objects, and how many objects the others were asked for.
func (t *Table) shards(places map[string]*place) (lost []string, asked []Share) {
	drained := map[string]int{}
	names := sets.New[string]()

	for shard, at := range places {
		switch {
		case at.works && at.drained > 0:
			drained[shard] = at.drained
		case !at.works && shard != "":
			names.Insert(shard)
		}
	}

	return slices.Sorted(maps.Keys(names)), shares(drained, func(shard string) string { return shard })
}

// unassigned reports whether no shard works on the object, as far as is known.
func (t *Table) unassigned(e *entry) bool { return !e.object.Draining && !t.available(e.object.Shard) }

// blocked reports whether the object cannot move now.
func (e *entry) blocked() bool {
	return e.phase == Delayed || e.phase == Parked && (e.cause.kind == kindHeld || e.cause.kind == kindOwner)
}

// why returns the reason why an object cannot move, with the name of the object; an empty text for nil.
func (t *Table) why(e *entry) string {
	if e == nil {
		return ""
	}

	reason := e.reason

	if e.phase == Parked {
		if reason = e.cause.String(); t.parked[e.cause].reason != "" {
			reason = t.parked[e.cause].reason
		}
	}

	return e.object.String() + ": " + reason
}
