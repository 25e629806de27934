package work

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// Summary summarizes the obligations of a table.
type Summary struct {
	// Unassigned is the number of objects without an available shard. Misplaced is the number of objects at the wrong
	// available shard that are not being drained. Draining is the number of objects that carry the drain label.
	Unassigned, Misplaced, Draining int
	// Late is the number of drains that were not acknowledged in time. LateExample is one of them, with its shard; one that is not among
	// the Silent if there is one.
	Late        int
	LateExample string
	// Silent are the shards that acknowledge no drains of a resource, those with the most late drains first.
	Silent []Silent
	// Blocked is the number of objects that cannot move now. BlockedExample is one of them, with the reason, and one that does not only
	// wait for its owner if there is one.
	Blocked        int
	BlockedExample string
	// Failing is the number of objects whose requests have failed for seconds. FailingExample is one of them, with the last error.
	Failing        int
	FailingExample string
	// More reports whether there are more objects than the table stores.
	More bool
	// Hanging are the resources whose writes the API server does not answer, the one that has hung for longest first.
	Hanging []Hanging
	// Resources are the numbers of all these objects by resource, and Problems of those that are late, blocked, or failing. Asked are the
	// numbers of objects with the drain label by the available shards that they are at. The largest numbers come first.
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
	return t.tally.resources[of] == 0 && !t.dropped && t.owing == 0
}

// class is the class in which an obligation is counted.
type class uint8

const (
	uncounted class = iota
	unassigned
	misplaced
	draining
)

// counted is what one obligation contributes to the tally.
type counted struct {
	phase   Phase
	class   class
	late    bool
	blocked bool
	failing bool
	lost    string
	// asked is the available shard that was asked to release the object.
	asked string
	// first reports whether the object waits for its followers. between reports whether it also follows another object.
	// follows reports whether it is in progress and follows another object.
	first, between, follows bool
}

// tally counts obligations, so that a summary does not visit them.
type tally struct {
	phases         [Delayed + 1]int
	classes        [draining + 1]int
	late, blocked  int
	first, follows int
	between        int
	lost, asked    map[string]int
	resources      map[schema.GroupResource]int
	problems       map[schema.GroupResource]int
	parked         int
	// failing counts obligations that are failing, by resource, and failed counts all of them. active does not contain those in progress.
	failing map[schema.GroupResource]int
	failed  int
	// owners counts obligations by object, in any version of the resource.
	owners map[feed.ID]int
}

func newTally() tally {
	return tally{
		lost: map[string]int{}, asked: map[string]int{}, owners: map[feed.ID]int{},
		resources: map[schema.GroupResource]int{}, problems: map[schema.GroupResource]int{}, failing: map[schema.GroupResource]int{},
	}
}

func add[K comparable](counts map[K]int, key K, n int) {
	if counts[key] += n; counts[key] == 0 {
		delete(counts, key)
	}
}

// active returns the number of obligations in progress. This includes objects that wait for their followers: a search or a
// move of these is running. It does not include objects that are failing: nobody needs to wait for the end of that.
func (y *tally) active() int {
	return y.phases[Due] + y.phases[Moving] + y.phases[Delayed] + y.first - y.failed
}

// count updates what an obligation contributes to the tally.
func (t *Table) count(e *entry) {
	now := t.countedAs(e)
	if now == e.counted {
		return
	}

	t.tally.add(e.object.ID, e.counted, -1)
	t.tally.add(e.object.ID, now, 1)
	e.counted = now
	t.searchIfRoom()
}

// beyondFailing reports whether an obligation that has failed finds no room, because too many others of its resource are failing. A drain does: it
// holds a permit.
func (t *Table) beyondFailing(e *entry) bool {
	return t.stuck() >= t.limits.Parked && t.tally.failing[e.object.GVR.GroupResource()] > 0 && !e.counted.failing && !e.object.Draining
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

	progresses := e.phase == Due || e.phase == Moving || e.phase == Delayed
	c.late = e.late
	c.failing = e.failing() && progresses
	c.blocked = e.phase == Delayed || e.phase == Parked && (e.cause.kind == kindHeld || e.cause.kind == kindOwner)

	if !available {
		c.lost = e.object.Shard
	} else if e.object.Draining {
		c.asked = e.object.Shard
	}

	c.first = e.phase == Parked && e.cause.kind == kindFollowers
	c.between = c.first && e.follows != (feed.Lineage{})
	c.follows = !c.failing && progresses && e.follows != (feed.Lineage{})

	return c
}

func (y *tally) add(id feed.ID, c counted, n int) {
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

	if c.failing {
		y.failed += n
		add(y.failing, id.GVR.GroupResource(), n)
	}

	if c.late || c.blocked || c.failing {
		add(y.problems, id.GVR.GroupResource(), n)
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

	if c.asked != "" {
		add(y.asked, c.asked, n)
	}

	add(y.resources, id.GVR.GroupResource(), n)

	id = anyVersion(id)
	if y.owners[id] += n; y.owners[id] == 0 {
		delete(y.owners, id)
	}
}

// Summary returns a summary of the obligations.
func (t *Table) Summary() Summary {
	y := &t.tally
	s := Summary{
		Unassigned: y.classes[unassigned], Misplaced: y.classes[misplaced], Draining: y.classes[draining],
		Late: y.late, Blocked: y.blocked, Failing: y.failed, More: t.dropped || t.owing > 0,
		Silent:    t.permits.silent(),
		Resources: shares(y.resources, schema.GroupResource.String),
		Problems:  shares(y.problems, schema.GroupResource.String),
		Asked:     shares(y.asked, func(shard string) string { return shard }),
		Hanging:   t.hanging(),
	}

	lost := maps.Clone(y.lost)

	for c := range t.parked {
		if c.kind == kindHeld {
			lost[c.shard]++
		}
	}

	s.Lost = slices.Sorted(maps.Keys(lost))

	if s.Late > 0 {
		e := cmp.Or(
			t.least(func(e *entry) bool { return e.late && !t.permits.deaf(laneOf(e.holds, e)) }),
			t.least(func(e *entry) bool { return e.late }))
		s.LateExample = e.object.String() + " at shard " + e.holds
	}

	if y.failed > 0 {
		e := t.least(func(e *entry) bool { return e.counted.failing })
		s.FailingExample = t.why(e)
	}

	if y.blocked > 0 {
		s.BlockedExample = t.why(cmp.Or(
			t.least(func(e *entry) bool { return e.counted.blocked && (e.phase != Parked || e.cause.kind != kindOwner) }),
			t.least(func(e *entry) bool { return e.counted.blocked })))
	}

	return s
}

// why returns the reason why an object cannot move, with the name of the object.
func (t *Table) why(e *entry) string {
	reason := e.reason

	if e.phase == Parked {
		if reason = e.cause.String(); t.parked[e.cause].reason != "" {
			reason = t.parked[e.cause].reason
		}
	}

	return e.object.String() + ": " + reason
}

// least returns the first obligation, by name, for which the condition holds. A summary of the same state is therefore always the same.
func (t *Table) least(holds func(*entry) bool) *entry {
	var first *entry

	for _, e := range t.entries {
		if holds(e) && (first == nil || feed.Compare(e.object.ID, first.object.ID) < 0) {
			first = e
		}
	}

	return first
}
