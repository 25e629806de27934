package work

import (
	"cmp"
	"slices"
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
func shares(counts map[string]int) (all []Share) {
	for of, n := range counts {
		if n > 0 {
			all = append(all, Share{Of: of, N: n})
		}
	}

	slices.SortFunc(all, func(a, b Share) int { return cmp.Or(cmp.Compare(b.N, a.N), cmp.Compare(a.Of, b.Of)) })

	return all
}

// problem is what is wrong with n obligations. The example is the oldest of them, or of those that matter more.
type problem struct {
	n       int
	example *entry
	minor   bool
}

// count counts another obligation, which may matter less.
func (p *problem) count(e *entry, minor bool) {
	p.n++

	if p.example == nil || p.minor && !minor || p.minor == minor && e.number < p.example.number {
		p.example, p.minor = e, minor
	}
}

// place counts the objects at a shard: those that carry the drain label, and others.
type place struct{ drained, others int }

// Summary returns a summary of the obligations. It visits all of them, which takes milliseconds if the table is full.
func (t *Table) Summary() Summary {
	s := Summary{More: t.missing, Silent: t.silent(), Hanging: t.hanging()}
	places, asked, resources, problems := map[string]*place{}, map[string]int{}, map[string]int{}, map[string]int{}

	var late, blocked, failing problem

	for _, e := range t.entries {
		at := places[e.object.Shard]
		if at == nil {
			at = &place{}
			places[e.object.Shard] = at
		}

		if e.object.Draining {
			at.drained++
		} else {
			at.others++
		}

		if e.late {
			late.count(e, e.lane.held[e.holds].deaf())
		}

		if e.blocked() {
			blocked.count(e, e.phase == Parked && e.cause.kind == kindOwner)
		}

		if e.failing() {
			failing.count(e, false)
		}

		if e.late || e.blocked() || e.failing() {
			problems[e.lane.String()]++
		}
	}

	for shard, at := range places {
		if s.Draining += at.drained; t.available(shard) {
			s.Misplaced += at.others
			asked[shard] = at.drained

			continue
		}

		if s.Unassigned += at.others; shard != "" {
			s.Lost = append(s.Lost, shard)
		}
	}

	for _, l := range t.lanes.all {
		resources[l.String()] = l.entries
	}

	if e := late.example; e != nil {
		s.LateExample = e.String() + " at shard " + e.holds
	}

	s.Late, s.Blocked, s.Failing = late.n, blocked.n, failing.n
	s.BlockedExample, s.FailingExample = t.why(blocked.example), t.why(failing.example)
	s.Resources, s.Problems, s.Asked = shares(resources), shares(problems), shares(asked)
	slices.Sort(s.Lost)

	return s
}

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

	return e.String() + ": " + reason
}
