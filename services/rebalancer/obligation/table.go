// Package obligation keeps what is out of place, until it was seen in its place.
//
// An obligation is one value for one object: the object as it was last seen, how far its move is, and what it waits for. A [Table]
// holds those of one ring. It is told what is seen, hands out what is due to workers, and is told what came of it. It asks nobody
// and knows no clock: the time is an argument.
package obligation

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/internal/invariants"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// Limits bound what a table holds and hands out. All are positive.
type Limits struct {
	// Drains is the number of drains in flight, PerShard that of one shard. Drains that are late count against their shard alone.
	Drains, PerShard int
	// DrainTimeout is how long a shard may take to acknowledge a drain until that is reported.
	DrainTimeout time.Duration
	// Active is the number of obligations that workers have still to deal with from which [Table.Full] holds back who finds more.
	Active int
	// Parked is the number of obligations kept while they wait for their cause. Of what is beyond it, the cause alone is kept, and where
	// that is a shard, one obligation, which tries again.
	Parked int
}

// Job is an obligation that a worker deals with.
type Job struct {
	// Object is the object as it was last seen.
	Object objects.Object
	// Stale says that the object has changed since, nobody knows how: it is to be read.
	Stale bool
}

// Table holds the obligations of one ring. It is not safe for concurrent use.
//
// Invariants:
//
//  1. An obligation ends only when its object was seen in its place, seen to be nobody's concern, or seen not to exist; or when
//     its shard has acknowledged a drain. The latter leaves a debt: a pass over all objects has to begin after it. So does what
//     finds no room in the table. Neither a write that was sent nor one that failed ends anything.
//  2. What was seen earlier never replaces what was seen later, by the resource version.
//  3. A worker has an object at most once at a time. What is seen of it meanwhile is looked at after that.
//  4. An object holds a slot of its shard exactly while it carries the drain label, as far as is known, or is on its way to: it was
//     woken because the slot is free, or was granted it and is with the worker.
//  5. What is parked costs nothing until [Table.Wake] names its cause, or the time for another try has come: then one of all that
//     wait for the same cause goes first.
//  6. What is counted is what there is.
//
// An alternative that was refused: to end an obligation with the write, and to leave the rest to a later pass. A pass that finds
// much does not tell what was dropped from what is new, and a ring at rest has none.
type Table struct {
	limits   Limits
	pace     invariants.Pace
	entries  map[objects.ID]*entry
	moving   map[*entry]struct{}
	ready    queue // due, of objects that have waited for what follows them, when all of that has gone before
	urgent   queue // due, of objects that nobody works on, and of those that have to go before one
	regular  queue // due, of all others
	timers   timers
	parked   map[Cause]*waiting
	slots    slots
	families families
	tally    tally
	debt     Debt
	moved    uint64

	available func(shard string) bool
}

// entry is one obligation.
type entry struct {
	object objects.Object
	phase  Phase
	// cause is what it waits for while it is parked.
	cause Cause
	// stale says that the object has changed, nobody knows how.
	stale bool
	// seen is the newest version that anybody told of. If it is not that of the object as it is kept, the object is stale.
	seen string
	// again says that something was seen or woken while a worker had the object; inPlace that the object, as it is kept, was seen in its
	// place meanwhile; doubted that something else than the object has changed, by which the worker may have decided.
	again, inPlace, doubted bool
	// left says that the ring has no such resource any more; a worker still has the object.
	left bool
	// failures counts the attempts that failed one after another.
	failures int
	// holds is the shard of which it holds a slot; since is when it began to, late that it is late to acknowledge.
	holds string
	since time.Time
	late  bool
	// timer is the number of its present timer, place that of its place among those that wait for its cause; others are over.
	timer, place int
	// probes is the cause for all those that wait for which it tries.
	probes Cause
	// follows are those that the object follows, as they are counted.
	follows objects.Lineage
	// reason says, for people, why it is delayed.
	reason string
	// counted is what it is counted as.
	counted counted
}

// New returns an empty table, for a ring without shards.
func New(l Limits) *Table {
	return &Table{
		limits: l, entries: map[objects.ID]*entry{}, moving: map[*entry]struct{}{}, parked: map[Cause]*waiting{}, slots: newSlots(), families: newFamilies(), tally: newTally(),
		available: func(string) bool { return false },
	}
}

// See takes note of an object that was seen, out of its place or in it. What is in its place ends its obligation, or leaves none.
func (t *Table) See(now time.Time, o objects.Object, inPlace bool) {
	if invariants.Enabled {
		defer t.check()
	}

	e, known := t.entries[o.ID]

	switch {
	case !known && inPlace:
		return
	case !known:
		e = &entry{object: o, seen: o.ResourceVersion}
		t.entries[o.ID] = e
	case objects.Older(o.ResourceVersion, e.seen), o.ResourceVersion == e.object.ResourceVersion && (e.stale || !inPlace):
		return // that it was so is known
	}

	t.replace(e, o)
	e.stale = false

	switch {
	case e.phase == Moving:
		e.again, e.inPlace, e.left = true, inPlace, false
		t.count(e)
	case inPlace:
		t.end(now, e)
	default:
		t.move(e, SeenMisplaced)
		t.slot(now, e)
	}
}

// Doubt has an object read that was seen to carry the drain label by somebody else than who is told when that label goes: it may have
// gone before, and nobody would tell again.
func (t *Table) Doubt(id objects.ID) {
	if invariants.Enabled {
		defer t.check()
	}

	if e, ok := t.entries[id]; ok {
		t.look(e, e.seen)
	}
}

// replace keeps an object as it is now. If its labels have changed, those that wait for it are looked at.
func (t *Table) replace(e *entry, o objects.Object) {
	changed := e.object.Shard != o.Shard || e.object.Draining != o.Draining
	if changed && t.available(e.object.Shard) {
		t.moved++
	}

	if before := e.object; o.Above == (objects.Above{}) && before.Lineage()[0] == o.Lineage()[0] {
		o.Above = before.Above // whoever tells now could not find it out
	}

	e.object, e.seen = o, o.ResourceVersion
	t.follow(e, o.Lineage())

	if changed {
		t.wake(OwnerOf(o.ID))
	}
}

// anew has a worker's report believed for what it says of the object alone: it decided by what is no longer so.
func (e *entry) anew() { e.again, e.inPlace, e.doubted = true, false, true }

// Unsure takes note that an object has come to a resource version which was not seen, and may be in its place.
func (t *Table) Unsure(id objects.ID, resourceVersion string) {
	if invariants.Enabled {
		defer t.check()
	}

	e, known := t.entries[id]
	if !known || e.phase == Draining || objects.Older(resourceVersion, e.seen) || resourceVersion == e.seen && !e.stale {
		return
	}

	t.look(e, resourceVersion)
}

// look has an object looked at again, and read before.
func (t *Table) look(e *entry, seen string) {
	e.stale, e.seen = true, seen

	if e.phase == Moving {
		e.again, e.inPlace = true, false
		e.doubted = e.doubted || seen == e.object.ResourceVersion // the worker may not have read it

		return
	}

	t.move(e, Woken)
}

// Released takes note that an object has lost its drain label by a resource version. If nobody has seen it since, the obligation
// ends, and a debt says that it was not seen. It reports whether that is so.
func (t *Table) Released(now time.Time, id objects.ID, resourceVersion string) bool {
	if invariants.Enabled {
		defer t.check()
	}

	e, known := t.entries[id]

	switch {
	case !known, objects.Older(resourceVersion, e.seen):
		return false
	case !e.object.Draining:
		t.Unsure(id, resourceVersion) // whoever asked for the drain has not told yet
		return false
	case e.phase == Moving:
		t.look(e, resourceVersion)
		return false
	}

	t.debt.Unseen = true
	t.moved++
	t.end(now, e)

	return true
}

// Drains returns the objects that are known to carry the drain label, and of which no worker is writing it. After a list of all
// that carry it, the others have lost it.
func (t *Table) Drains(of func(objects.ID) bool) map[objects.ID]string {
	drains := map[objects.ID]string{}

	for id, e := range t.entries {
		if e.object.Draining && e.phase != Moving && of(id) {
			drains[id] = e.object.ResourceVersion
		}
	}

	return drains
}

// Unlisted has objects looked at that have no available shard, as far as is known, and were not in a list of all such: somebody
// may have put them where they belong while nobody watched.
func (t *Table) Unlisted(of func(objects.ID) bool) {
	if invariants.Enabled {
		defer t.check()
	}

	for _, id := range t.sorted() {
		if e := t.entries[id]; e.counted.class == unassigned && of(id) {
			t.look(e, e.seen)
		}
	}
}

// Recheck has every obligation looked at again: the ring wants something else. The function says which shards are available now.
// Those that keep refuses are forgotten: their resource is not served so any more, and if it is otherwise, it is listed anew.
func (t *Table) Recheck(now time.Time, available func(shard string) bool, keep func(objects.ID) bool) {
	if invariants.Enabled {
		defer t.check()
	}

	t.available = available
	for _, id := range t.sorted() {
		e := t.entries[id]

		switch {
		case e.phase == Moving:
			e.left = !keep(id)
			e.anew()
		case !keep(id):
			t.end(now, e)
			continue
		default:
			t.move(e, Woken)
		}

		e.failures = 0
		t.count(e)
	}

	t.requeue()
	t.repayAll()
}

// Take hands out what is due: first what is one write away from its place because all that follows it has gone before, so that of many
// objects one after another gets there, and not all at the end; then what nobody works on. ok is false if nothing is due.
func (t *Table) Take(now time.Time) (job Job, ok bool) {
	if invariants.Enabled {
		defer t.check()
	}

	t.Expire(now)

	for _, q := range []*queue{&t.ready, &t.urgent, &t.regular} {
		for e := q.pop(); e != nil; e = q.pop() {
			if e.phase == Due && t.entries[e.object.ID] == e {
				t.move(e, Taken)
				e.again, e.inPlace, e.doubted = false, false, false

				return Job{Object: e.object, Stale: e.stale}, true
			}
		}
	}

	return Job{}, false
}

// move changes the phase of an obligation, and does what belongs to it.
func (t *Table) move(e *entry, event Event) {
	before := e.phase
	e.phase = next(before, event)

	if e.phase == Due && before != Due {
		e.timer++
		e.reason = ""
		t.queue(e)
	}

	if e.phase == Moving {
		t.moving[e] = struct{}{}
	} else {
		delete(t.moving, e)
	}

	if before == Parked && e.phase != Parked {
		t.unpark(e)
	}

	t.count(e)
}

// requeue puts all that is due into the queues anew: who is urgent has changed.
func (t *Table) requeue() {
	t.ready, t.urgent, t.regular = queue{}, queue{}, queue{}

	for _, id := range t.sorted() {
		if e := t.entries[id]; e.phase == Due {
			t.queue(e)
		}
	}
}

// queue has workers deal with an obligation.
func (t *Table) queue(e *entry) {
	switch {
	case e.cause.kind == kindFollowers && t.together(e):
		t.ready.push(e)
	case t.available(e.object.Shard) && !t.awaited(e):
		t.regular.push(e)
	default:
		t.urgent.push(e)
	}
}

// end forgets an obligation.
func (t *Table) end(now time.Time, e *entry) {
	t.move(e, SeenInPlace)
	delete(t.entries, e.object.ID)
	e.timer++
	t.hold(now, e, "")
	t.wakeSlots(now)
	t.wake(OwnerOf(e.object.ID))
	t.follow(e, objects.Lineage{})

	if t.families.roomless.Delete(e.object.UID); len(t.entries) == 0 {
		t.families.roomless = sets.New[types.UID]()
	}

	t.tried(e)
}

// Full reports whether so much is still to be dealt with that who finds more should wait.
func (t *Table) Full() bool { return t.tally.active() >= t.limits.Active }

// FullOfFollowers reports whether so many objects that follow others are to be dealt with that who looks for more of them should wait. It is
// apart from [Table.Full], for those that wait for them are part of that.
func (t *Table) FullOfFollowers() bool { return t.tally.follows >= t.limits.Active }

// Empty reports whether there is no obligation, not even one of which only the cause is kept.
func (t *Table) Empty() bool { return len(t.entries) == 0 && len(t.parked) == 0 }

// Has reports whether there is an obligation for the object, and returns the object as it was last seen.
func (t *Table) Has(id objects.ID) (objects.Object, bool) {
	if e, ok := t.entries[id]; ok {
		return e.object, true
	}

	return objects.Object{}, false
}
