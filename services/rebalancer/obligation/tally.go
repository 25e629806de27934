package obligation

import (
	"maps"
	"slices"

	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// Summary is what a table says of its obligations.
type Summary struct {
	// Unassigned is the number of objects without an available shard, Misplaced that of those at another shard than they belong to
	// that have not been asked for, Draining that of those that carry the drain label.
	Unassigned, Misplaced, Draining int
	// Late is the number of draining objects that have not been given up in time, LateExample one of them with its shard.
	Late        int
	LateExample string
	// Blocked is the number of objects that cannot be moved now, BlockedExample one of them with the reason.
	Blocked        int
	BlockedExample string
	// Lost are the shards that are not available and still have objects, as far as is known; sorted.
	Lost []string
}

// Debt is what has to be looked for again, because it was not kept or not seen.
type Debt struct {
	// All says that a pass over all labelled objects has to begin, Unseen that it has to because objects were given up.
	All, Unseen bool
	// Relist says that the objects without an available shard have to be listed.
	Relist bool
	// Lost are shards of which the objects have to be listed, Misplaced those where a pass has to look.
	Lost, Misplaced []string
}

func (d *Debt) lose(shard string)     { d.Lost = append(d.Lost, shard) }
func (d *Debt) misplace(shard string) { d.Misplaced = append(d.Misplaced, shard) }

// Debt returns what is owed, and forgets it. ok is false if nothing is.
func (t *Table) Debt() (d Debt, ok bool) {
	d = t.debt
	t.debt = Debt{}

	slices.Sort(d.Lost)
	slices.Sort(d.Misplaced)

	return d, d.All || d.Unseen || d.Relist || len(d.Lost) > 0 || len(d.Misplaced) > 0
}

// Moved counts the objects that a living shard had and that were put elsewhere, or asked for. Between two equal counts nothing was.
func (t *Table) Moved() uint64 { return t.moved }

// class is what an obligation is counted as.
type class uint8

const (
	uncounted class = iota
	unassigned
	misplaced
	draining
)

// counted is what one obligation adds to the tally.
type counted struct {
	phase   Phase
	class   class
	late    bool
	blocked bool
	lost    string
	// first says that what follows the object goes first, between that it follows another, too; follows that it is active and follows another.
	first, between, follows bool
}

// tally counts obligations, so that a summary does not go over them.
type tally struct {
	phases          [Delayed + 1]int
	classes         [draining + 1]int
	late, blocked   int
	first, follows  int
	between         int
	lost            map[string]int
	parked, dropped int
	// owners counts obligations by object, in whatever version it was read.
	owners map[objects.ID]int
}

func newTally() tally { return tally{lost: map[string]int{}, owners: map[objects.ID]int{}} }

// active counts what workers have still to deal with. An object that waits for those which follow it is part of that: they are being looked
// for, or moved.
func (y *tally) active() int { return y.phases[Due] + y.phases[Moving] + y.phases[Delayed] + y.first }

// count counts an obligation as what it is now.
func (t *Table) count(e *entry) {
	now := t.countedAs(e)
	if now == e.counted {
		return
	}

	t.tally.add(e.object.ID, e.counted, -1)
	t.tally.add(e.object.ID, now, 1)
	e.counted = now
}

func (t *Table) countedAs(e *entry) counted {
	c := counted{phase: e.phase}
	if e.phase == None {
		return c
	}

	available := t.available(e.object.Shard)

	switch {
	case e.object.Draining:
		c.class = draining
	case available:
		c.class = misplaced
	default:
		c.class = unassigned
	}

	c.late = e.late
	c.blocked = e.phase == Delayed || e.phase == Parked && (e.cause.kind == kindHeld || e.cause.kind == kindOwner)

	if !available {
		c.lost = e.object.Shard
	}

	c.first = e.phase == Parked && e.cause.kind == kindFollowers
	c.between = c.first && e.follows != (objects.Lineage{})
	c.follows = e.follows != (objects.Lineage{}) && (e.phase == Due || e.phase == Moving || e.phase == Delayed)

	return c
}

func (y *tally) add(id objects.ID, c counted, n int) {
	if c.phase == None {
		return
	}

	y.phases[c.phase] += n
	y.classes[c.class] += n

	if c.late {
		y.late += n
	}

	if c.blocked {
		y.blocked += n
	}

	if c.first {
		y.first += n
	}

	if c.between {
		y.between += n
	}

	if c.follows {
		y.follows += n
	}

	if c.lost != "" {
		add(y.lost, c.lost, n)
	}

	id = anyVersion(id)
	if y.owners[id] += n; y.owners[id] == 0 {
		delete(y.owners, id)
	}
}

// Summary returns what there is to say of the obligations.
func (t *Table) Summary() Summary {
	y := &t.tally
	s := Summary{
		Unassigned: y.classes[unassigned], Misplaced: y.classes[misplaced], Draining: y.classes[draining],
		Late: y.late, Blocked: y.blocked + y.dropped,
	}

	lost := maps.Clone(y.lost)

	for c := range t.parked {
		if c.kind == kindHeld {
			lost[c.shard]++
		}
	}

	s.Lost = slices.Sorted(maps.Keys(lost))

	if s.Late > 0 {
		e := t.least(func(e *entry) bool { return e.late })
		s.LateExample = e.object.String() + " at shard " + e.holds
	}

	if y.blocked > 0 {
		s.BlockedExample = t.why(t.least(func(e *entry) bool { return e.counted.blocked }))
	} else if y.dropped > 0 {
		s.BlockedExample = "objects that wait because " + t.droppedCause()
	}

	return s
}

// why says why an object cannot be moved.
func (t *Table) why(e *entry) string {
	reason := e.reason

	if e.phase == Parked {
		if reason = e.cause.String(); t.parked[e.cause].reason != "" {
			reason = t.parked[e.cause].reason
		}
	}

	return e.object.String() + ": " + reason
}

func (t *Table) droppedCause() string {
	var all []string

	for c, w := range t.parked {
		if w.roomless() > 0 {
			all = append(all, c.String())
		}
	}

	return slices.Min(all)
}

// least returns the first obligation, by name, of which the condition holds, so that a summary of the same state is the same.
func (t *Table) least(holds func(*entry) bool) *entry {
	var first *entry

	for _, e := range t.entries {
		if holds(e) && (first == nil || objects.Compare(e.object.ID, first.object.ID) < 0) {
			first = e
		}
	}

	return first
}
