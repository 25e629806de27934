// Package work stores the objects that are out of place, until each was seen in its place.
//
// An obligation is one value for one object: the object as it was last seen, the state of its move, and what it waits for. A
// [Table] stores the obligations of one ring. It receives what was seen, hands out what is due to workers, and receives their
// results. It sends no requests and has no clock: the time is an argument.
package work

import (
	"cmp"
	"container/list"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/internal/invariants"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// Limits are the limits on what a table stores and hands out. All fields are positive.
type Limits struct {
	// Workers is the number of jobs in progress, without those that hang.
	Workers int
	// Drains is the number of drains in flight. PerShard is the number of drains in flight of one shard. A late drain counts
	// only against its shard.
	Drains, PerShard int
	// DrainTimeout is the time after which an unacknowledged drain is reported.
	DrainTimeout time.Duration
	// Active is the number of obligations in progress at which [Table.Full] makes sources wait.
	Active int
	// Parked is the number of obligations that are stored while they wait for their causes, or have failed again and again.
	// Beyond it, they are dropped, and a pass finds them again. One of those that wait for a shard stays, and retries.
	// Obligations that fail are dropped only if others of their resource are failing.
	Parked int
}

// Job is an obligation that a worker processes.
type Job struct {
	// Object is the object as it was last seen.
	Object feed.Object
	// Stale reports whether the object has changed since in an unknown way, so that the worker has to read it.
	Stale bool
	// Plain reports whether the annotation of a hand-over was found not to fit into the object.
	Plain bool
	// Within is how long the API server may take for a write. Hung is after how long a write counts as hanging.
	Within, Hung time.Duration
}

// Table holds the obligations of one ring. It is not safe for concurrent use.
//
// Invariants:
//
//  1. An obligation ends only when its object was seen in its place, seen not to concern the ring, or seen not to exist;
//     or when its shard has acknowledged a drain. The acknowledgement leaves a debt: a pass over all objects has to begin
//     after it. An object that finds no room in the table also leaves a debt, when half of
//     the room is free. A write never ends an
//     obligation, whether it succeeds or fails.
//  2. An earlier sight never replaces a later one, by the resource version.
//  3. At most one worker has an object at a time. Sights of the object meanwhile are processed afterwards.
//  4. An object holds a permit of its shard exactly while it carries the drain label, as far as is known, or is about to
//     get the label: it was woken because the permit is free, or it was granted the permit and is with the worker.
//  5. Parked obligations cost nothing until [Table.Wake] names their cause, or a retry is due. In a retry, one of all
//     obligations with the same cause goes first.
//  6. All counts are correct.
//  7. An obligation that has become urgent while it was due is not queued with those that are not urgent. Every fourth job
//     comes from the queue that would go last, and resources take turns.
//  8. A resource whose writes hang has at most a quarter of the workers. It holds up no other.
//
// Rejected alternative: to end an obligation with the write, and to leave the rest to a later pass. A pass that finds many
// objects cannot distinguish dropped objects from new ones, and a ring at rest has no pass.
type Table struct {
	limits   Limits
	pace     invariants.Pace
	entries  map[feed.ID]*entry
	moving   map[*entry]struct{}
	lanes    lanes
	timers   timers
	parked   map[Cause]*waiting
	permits  permits
	families families
	tally    tally
	debt     Debt
	// dropped reports whether obligations found no room, so that a pass has to find them again.
	dropped bool
	// owing counts the causes whose obligations found no room, and are searched when it wakes them.
	owing int
	// moved counts by resource how often objects of live shards have moved or were asked for.
	moved map[schema.GroupResource]uint64
	// paused is until when no further object may be drained; zero if objects may be.
	paused time.Time

	available func(shard string) bool
}

// entry is one obligation.
type entry struct {
	object feed.Object
	phase  Phase
	// cause is what it waits for while it is parked.
	cause Cause
	// stale reports whether the object has changed in an unknown way.
	stale bool
	// seen is the newest reported version. If the stored object has another version, the object is stale.
	seen string
	// again reports whether something was seen or woken while a worker had the object. inPlace reports whether the stored
	// object was seen in its place meanwhile. doubted reports whether something else has changed that the worker may have
	// used for its decision.
	again, inPlace, doubted bool
	// left reports whether the resource has left the ring while a worker still has the object.
	left bool
	// failures counts consecutive failed attempts. failing reports whether they were many, and no change of the object explains the last one.
	failures int
	failing  bool
	// plain reports whether a hand-over was found not to fit into the object.
	plain bool
	// holds is the shard of which it holds a permit. since is when it got the permit, and late reports whether the drain is late.
	holds string
	since time.Time
	late  bool
	// move is its place among the planned moves, if it is or was in one.
	move *list.Element
	// timer is when it is due again.
	timer timer
	// lane is what is due of its resource. hung reports whether a worker has it, and its write hangs.
	lane *lane
	hung bool
	// probes is the cause for which it retries on behalf of all obligations with that cause.
	probes Cause
	// follows are the objects for which it is counted as a follower.
	follows feed.Lineage
	// queue is the queue that it is in, of those that are due or that wait for its cause, and spot is its place there; nil if
	// it is in none.
	queue *queue
	spot  *list.Element
	// reason is the last failure in a row; empty if there was none.
	reason string
	// counted is what the tally contains for it.
	counted counted
}

// New returns an empty table, for a ring without shards.
func New(l Limits) *Table {
	return &Table{
		limits: l, entries: map[feed.ID]*entry{}, moving: map[*entry]struct{}{}, parked: map[Cause]*waiting{}, permits: newPermits(), families: newFamilies(), tally: newTally(),
		moved:     map[schema.GroupResource]uint64{},
		available: func(string) bool { return false },
	}
}

// See records an object that was seen, out of its place or in it. An object in its place ends its obligation, or causes none.
func (t *Table) See(now time.Time, o feed.Object, inPlace bool) {
	if invariants.Enabled {
		defer t.check()
	}

	e, known := t.entries[o.ID]

	switch {
	case !known && inPlace:
		return
	case !known:
		e = &entry{object: o, seen: o.ResourceVersion, lane: t.lane(o.GVR.GroupResource())}
		t.entries[o.ID] = e
	case feed.Older(o.ResourceVersion, e.seen), o.ResourceVersion == e.object.ResourceVersion && (e.stale || !inPlace):
		return // this state is already known
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
		t.hasten(e)
		t.permit(now, e)

		if !known && !o.Draining && !e.lane.hanging.IsZero() && e.lane.waiting() > t.limits.Parked {
			t.drop(now, e)
		}
	}
}

// Doubt requests a read of an object with a drain label that was seen by another source than the one that reports the removal
// of that label: the label may already be gone, and no event would report it again.
func (t *Table) Doubt(id feed.ID) {
	if invariants.Enabled {
		defer t.check()
	}

	if e, ok := t.entries[id]; ok {
		t.look(e, e.seen)
	}
}

// replace stores the current state of an object. If its labels have changed, the obligations that wait for it are woken.
func (t *Table) replace(e *entry, o feed.Object) {
	changed := e.object.Shard != o.Shard || e.object.Draining != o.Draining
	if changed && t.available(e.object.Shard) {
		t.moved[o.GVR.GroupResource()]++
	}

	before := e.object
	if o.Above == (feed.Above{}) && before.Lineage()[0] == o.Lineage()[0] {
		o.Above = before.Above // the source of this sight could not find it out
	}

	e.object, e.seen = o, o.ResourceVersion
	t.give(o)
	t.follow(e, o.Lineage())

	// What follows the object waits in any case while it is being drained.
	if changed && (before.Shard != o.Shard || before.Draining) {
		t.wake(OwnerOf(o.ID))
	}
}

// anew makes the table use only the object of the worker's next report: the worker's decision is out of date.
func (e *entry) anew() { e.again, e.inPlace, e.doubted = true, false, true }

// Unsure records that an object has reached a resource version that was not seen. It may be in its place.
func (t *Table) Unsure(id feed.ID, resourceVersion string) {
	if invariants.Enabled {
		defer t.check()
	}

	e, known := t.entries[id]
	if !known || e.phase == Draining || feed.Older(resourceVersion, e.seen) || resourceVersion == e.seen && !e.stale {
		return
	}

	t.look(e, resourceVersion)
}

// look requests another read of an object.
func (t *Table) look(e *entry, seen string) {
	e.stale, e.seen = true, seen

	if e.phase == Moving {
		e.again, e.inPlace = true, false
		e.doubted = e.doubted || seen == e.object.ResourceVersion // the worker may not have read it

		return
	}

	t.move(e, Woken)
}

// Released records that an object has lost its drain label by a resource version. If the object has not been seen since, the
// obligation ends and leaves a debt, because the object was not seen in its place. It reports whether this is the case.
func (t *Table) Released(now time.Time, id feed.ID, resourceVersion string) bool {
	if invariants.Enabled {
		defer t.check()
	}

	e, known := t.entries[id]

	switch {
	case !known, feed.Older(resourceVersion, e.seen):
		return false
	case !e.object.Draining:
		t.Unsure(id, resourceVersion) // the drain has not been reported yet
		return false
	case e.phase == Moving:
		t.look(e, resourceVersion)
		return false
	}

	t.debt.Unseen = t.debt.Unseen.Union(sets.New(id.GVR.GroupResource()))
	t.moved[id.GVR.GroupResource()]++
	e.object.Shard = "" // as far as is known
	t.end(now, e)

	return true
}

// Unlisted requests a read of the objects that have no available shard, or are being drained, as far as is known, and were
// missing in a complete list of such objects: this may have changed while no watch was open.
func (t *Table) Unlisted(drains bool, of func(feed.ID) bool) {
	if invariants.Enabled {
		defer t.check()
	}

	should := unassigned
	if drains {
		should = draining
	}

	for _, id := range t.sorted() {
		if e := t.entries[id]; e.counted.class == should && of(id) {
			t.look(e, e.seen)
		}
	}
}

// Recheck wakes every obligation, because the target has changed. available reports which shards may work on objects now. Recheck
// drops the obligations that keep refuses: their resource is no longer served in this way. If it is served in another way, it
// is listed again.
func (t *Table) Recheck(now time.Time, available func(shard string) bool, keep func(feed.ID) bool) {
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

		e.succeed()
		t.count(e)
	}

	t.requeue()
	t.repayAll()
}

// Take hands out an obligation that is due. Objects whose followers have all moved come first, because they are one write away
// from their place: this completes owners one after another, and not all at the end. Objects that no shard works on come
// second. ok is false if nothing may be handed out now.
func (t *Table) Take(now time.Time) (job Job, ok bool) {
	if invariants.Enabled {
		defer t.check()
	}

	t.Expire(now)

	e, turn := t.first()
	if e == nil {
		return Job{}, false
	}

	t.lanes.turn = turn
	t.lanes.jobs++

	t.move(e, Taken)
	e.again, e.inPlace, e.doubted = false, false, false

	return Job{
		Object: e.object, Stale: e.stale, Plain: e.plain, Within: cmp.Or(e.lane.within, firstWithin), Hung: max(hungAfter, 2*e.lane.usual),
	}, true
}

// move changes the phase of an obligation and updates what depends on it.
func (t *Table) move(e *entry, event Event) {
	before := e.phase
	e.phase = next(before, event)

	if e.phase == before {
		t.count(e)
		return
	}

	switch before { //nolint:exhaustive // nothing to leave
	case Due:
		e.unqueue()
	case Moving:
		delete(t.moving, e)
		t.works(e, false)
	case Parked:
		t.unpark(e)
	}

	switch e.phase { //nolint:exhaustive // the caller does the rest
	case Due:
		t.timers.stop(&e.timer)
		t.queue(e)
	case Moving:
		t.moving[e] = struct{}{}
		t.works(e, true)
	}

	t.count(e)
}

// requeue rebuilds the queues, because the set of urgent objects has changed.
func (t *Table) requeue() {
	for _, id := range t.sorted() {
		if e := t.entries[id]; e.phase == Due {
			e.unqueue()
			t.queue(e)
		}
	}
}

// queue adds an obligation to the queue that fits it.
func (t *Table) queue(e *entry) { t.fitting(e).push(e) }

// fitting returns the queue for an obligation.
func (t *Table) fitting(e *entry) *queue {
	switch {
	case e.cause.kind == kindFollowers && t.together(e):
		return &e.lane.due[ready]
	case t.available(e.object.Shard) && !t.awaited(e):
		return &e.lane.due[regular]
	default:
		return &e.lane.due[urgent]
	}
}

// hasten moves an obligation that is due already to the urgent queue, if it has become urgent. Otherwise it would be processed after everything
// that became due before it.
func (t *Table) hasten(e *entry) {
	if e.queue == &e.lane.due[regular] && t.fitting(e) != e.queue {
		e.unqueue()
		t.queue(e)
	}
}

// end drops an obligation.
func (t *Table) end(now time.Time, e *entry) {
	t.move(e, SeenInPlace)
	delete(t.entries, e.object.ID)
	t.timers.stop(&e.timer)

	if t.tally.resources[e.lane.of] == 0 {
		e.lane.hanging, e.lane.reason = time.Time{}, "" // the next write shows it
	}

	t.hold(now, e, "")
	t.permits.leave(e)
	t.grantNext(now)
	t.wake(OwnerOf(e.object.ID))
	t.follow(e, feed.Lineage{})

	t.families.given.Delete(e.object.UID)

	if t.families.roomless.Delete(e.object.UID); len(t.entries) == 0 {
		t.families.roomless, t.families.given = sets.New[types.UID](), sets.New[types.UID]()
	}

	t.tried(e)
}

// Full reports whether so many obligations are in progress that sources should wait. Those whose writes hang do not count.
func (t *Table) Full() bool { return t.tally.active()-t.behindHung() >= t.limits.Active }

// FullOfFollowers reports whether so many followers are in progress that the search for more should wait. It is separate from
// [Table.Full], because the objects that wait for followers count there.
func (t *Table) FullOfFollowers() bool { return t.tally.follows-t.behindHung() >= t.limits.Active }

// Empty reports whether there is no obligation, including those that found no room.
func (t *Table) Empty() bool { return len(t.entries) == 0 && len(t.parked) == 0 && !t.dropped }

// Has reports whether there is an obligation for the object, and returns the object as it was last seen.
func (t *Table) Has(id feed.ID) (feed.Object, bool) {
	if e, ok := t.entries[id]; ok {
		return e.object, true
	}

	return feed.Object{}, false
}
