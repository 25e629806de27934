// Package work stores the objects that are out of place, until each was seen in its place.
//
// An obligation is one value for one object: the object as it was last seen, the state of its move, and what it waits
// for. A [Table] stores the obligations of one ring. It receives what was seen, hands out what is due to workers, and
// receives their results. It sends no requests and has no clock: the time is an argument.
package work

import (
	"cmp"
	"container/list"
	"maps"
	"time"
	"unique"

	"github.com/google/btree"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/internal/invariants"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// Limits are the limits on what a table stores and hands out. All fields are positive.
type Limits struct {
	// Workers is the number of jobs in progress, without those that hang.
	Workers int
	// Drains is the number of drains in flight. PerShard is the number of drains in flight of one shard. A late drain
	// counts only against its shard.
	Drains, PerShard int
	// DrainTimeout is the time after which an unacknowledged drain is reported.
	DrainTimeout time.Duration
	// Active is the number of obligations in progress at which [Table.Full] makes sources wait.
	Active int
	// Parked is the number of obligations that are stored while they wait for their causes, or have failed again and
	// again. Beyond it, they are dropped, and a pass finds them again. One of those that wait for a shard stays, and
	// retries. Obligations that fail are dropped only if others of their resource are failing.
	// Those that wait for what follows them, and follow others, are dropped beyond Active and Parked together.
	Parked int
}

// Job is an obligation that a worker processes, and all that is known about its move without a request.
type Job struct {
	// Object is the object as it was last seen.
	Object feed.Object
	// Stale reports whether the object has changed since in an unknown way, so that the worker has to read it.
	Stale bool
	// Plain reports whether the annotation of a hand-over was found not to fit into the object.
	Plain bool
	// Within is how long the API server may take for a write. Hung is after how long a write counts as hanging.
	Within, Hung time.Duration
	// Permit is the shard of which the object holds a permit to be drained; empty if it holds none.
	Permit string
	// Held reports whether other objects wait because the object's shard may still work on them, and a retry is scheduled.
	Held bool
	// Grace is how long objects of lost shards have to wait for their shards to come back, and GraceReason says why; zero
	// or negative if they do not have to wait. The table does not set it.
	Grace       time.Duration
	GraceReason string
	// Follows is the main object that the object follows, if that is an obligation too. Given reports whether no shard
	// works on it, and what follows it moves to its next shard.
	Follows *feed.Object
	Given   bool
	// Related reports whether the object waits for its followers, or follows an object that does.
	Related bool
	// Gathered is what is known about the objects that follow the object.
	Gathered Gathered
}

// Table holds the obligations of one ring. It is not safe for concurrent use.
//
// Invariants:
//
//  1. An obligation ends only when its object was seen in its place, seen not to concern the ring, or seen not to
//     exist; or when its shard has acknowledged a drain. The acknowledgement leaves a debt: a pass over all objects has
//     to begin after it. An object that finds no room leaves a debt to search it when half of the room is free, or when
//     nothing waits for its shard anymore. A write never ends an obligation, whether it succeeds or fails.
//  2. An earlier sight never replaces a later one, by the resource version.
//  3. At most one worker has an object at a time. Sights of the object meanwhile are processed afterwards. While a
//     worker has a main object, none has an object that follows it, and vice versa. See [turn].
//  4. An object holds a permit of its shard exactly while it carries the drain label, as far as is known, or is about
//     to get the label: it was woken because the permit is free, or it was granted the permit and is with the worker.
//  5. Parked obligations cost nothing until [Table.Wake] names their cause, or a retry is due. In a retry, one of all
//     obligations with the same cause goes first.
//  6. All counts are correct.
//  7. An obligation that has become urgent while it was due is not queued with those that are not urgent. Every fourth
//     job comes from the queue that would go last, and resources take turns.
//  8. A resource whose writes hang has at most a quarter of the workers. It holds up no other.
//  9. Families and followers are counted correctly. See family.go.
//
// Rejected alternative: to end an obligation with the write, and to leave the rest to a later pass. A pass that finds
// many objects cannot distinguish dropped objects from new ones, and a ring at rest has no pass.
type Table struct {
	limits  Limits
	pace    invariants.Pace
	entries map[feed.ID]*entry
	number  int
	lanes   lanes
	timers  *btree.BTreeG[*timer]
	// timed counts the timers that were ever set.
	timed   int
	parked  map[Cause]*waiting
	permits permits
	// families are the families by the UIDs of their objects, and following are the obligations by those of all objects
	// that they follow.
	families  map[types.UID]*family
	following index[*entry]
	followers followers
	// uids are the obligations by the UIDs of their objects, and turns are the turns in progress by those of main objects.
	uids  map[types.UID]*entry
	turns map[types.UID]*turn
	debt  Debt
	// missing reports whether objects found no room, and have to be searched.
	missing bool
	// phases counts the obligations by phase, and waiting those that wait for what follows them.
	phases  [Delayed + 1]int
	waiting int
	// paused is until when no further object may be drained; it is not set if objects may be.
	paused timer

	available func(shard string) bool
}

// entry is one obligation. A summary reads the first fields of each.
type entry struct {
	phase Phase
	// stale reports whether the object has changed in an unknown way.
	stale bool
	// news is what has happened while a worker has the object.
	news News
	// late reports whether the drain of the object is late.
	late bool
	// plain reports whether a hand-over was found not to fit into the object.
	plain bool
	// hung reports whether a worker has the object, and its write hangs.
	hung bool
	// failures counts consecutive failed attempts.
	failures int
	// number is its number among all obligations that there ever were.
	number int
	// lane is what is due of its resource.
	lane *lane
	// cause is what it waits for while it is parked.
	cause  Cause
	object feed.Object
	// seen is the newest reported version. If the stored object has another version, the object is stale.
	seen string
	// holds is the shard of which it holds a permit. since is when it got the permit.
	holds string
	since time.Time
	// planned is until when its planned move counts; it is not set if it is in none that does.
	planned timer
	// timer is when it is due again.
	timer timer
	// follows are the objects for which it is counted as a follower.
	follows feed.Lineage
	// turn is the turn that it has while a worker has it, and begun counts the families that had begun to seek their
	// followers when the worker took it.
	turn  *turn
	begun int
	// queue is the queue that it is in, of those that are due or that wait for its cause, and spot is its place there; nil
	// if it is in none.
	queue *queue
	spot  *list.Element
	// reason is the last failure in a row; empty if there was none.
	reason string
}

func (e *entry) String() string { return e.object.String() }

// New returns an empty table, for a ring without shards.
func New(l Limits) *Table {
	return &Table{
		limits: l, entries: map[feed.ID]*entry{}, parked: map[Cause]*waiting{},
		timers:  newTimers(),
		permits: permits{wanted: sets.New[Cause]()}, families: map[types.UID]*family{}, following: index[*entry]{},
		uids: map[types.UID]*entry{}, turns: map[types.UID]*turn{},
		followers: followers{needed: map[string]time.Time{}, watches: map[Place]*Watch{}},
		available: func(string) bool { return false },
	}
}

// See records an object that was seen, out of its place or in it. An object in its place ends its obligation, or causes
// none.
func (t *Table) See(now time.Time, o feed.Object, inPlace bool) {
	defer t.check()

	t.reached(o)

	e, known := t.entries[o.ID]

	switch {
	case !known && inPlace:
		return
	case !known:
		t.number++
		e = &entry{number: t.number, object: o, seen: o.ResourceVersion, lane: t.lane(o.GVR.GroupResource())}
		t.entries[o.ID], t.uids[o.UID] = e, e
		e.lane.entries++
	case feed.Older(o.ResourceVersion, e.seen), o.ResourceVersion == e.object.ResourceVersion && (e.stale || !inPlace):
		return // this state is already known
	}

	if o.Above == (feed.Above{}) && e.object.Lineage()[0] == o.Lineage()[0] {
		o.Above = e.object.Above // the source of this sight could not find it out
	}

	t.replace(now, e, o)
	e.stale = false

	switch {
	case e.phase == Moving:
		e.news = e.news.and(Sighted)
	case inPlace:
		t.end(now, e)
	default:
		if e.phase != Delayed { // otherwise a change every few milliseconds would end the pauses
			t.move(e, Due)
		}

		t.expedite(e)
		t.permit(now, e)

		if !known && !o.Draining && !e.lane.hanging.IsZero() && e.lane.waiting() > t.limits.Parked {
			t.drop(now, e)
		}
	}
}

// Find records an object that was seen out of its place by another source than the one that reports the removal of its
// drain label. The label may already be gone, and no event would report it again: if the drain is news, the object is
// read.
func (t *Table) Find(now time.Time, o feed.Object) {
	before, known := t.Has(o.ID)
	t.See(now, o, false)

	if e := t.entries[o.ID]; e != nil && o.Draining && (!known || !before.Draining) {
		t.look(e, e.seen)
	}
}

// replace stores the current state of an object. If its labels have changed, the obligations that wait for it are
// woken.
func (t *Table) replace(now time.Time, e *entry, o feed.Object) {
	changed := e.object.Shard != o.Shard || e.object.Draining != o.Draining
	if changed && t.available(e.object.Shard) {
		e.lane.moved++
	}

	before := e.object
	if t.uids[before.UID] == e {
		delete(t.uids, before.UID)
	}

	t.uids[o.UID] = e

	if o.Draining && !before.Draining && t.isMain(o) {
		t.followers.needed[o.Namespace], t.followers.news = now, true // it is about to lose its shard
	}

	ends := before.UID != o.UID || t.isMain(o) && before.Shard != o.Shard && t.available(o.Shard)
	if ends {
		t.disband(e)
	}

	o.Shard = unique.Make(o.Shard).Value() // so that a visit of all objects does not read each of these texts
	e.object, e.seen = o, o.ResourceVersion
	t.follow(e, t.lineage(o))

	// What follows the object waits in any case while it is being drained.
	if changed && (before.Shard != o.Shard || before.Draining) {
		t.wake(OwnerOf(o.ID))
	}
}

// Unsure records that an object has reached a resource version that was not seen. It may be in its place.
func (t *Table) Unsure(id feed.ID, resourceVersion string) {
	defer t.check()

	e, known := t.entries[id]
	if !known || e.phase == Draining || feed.Older(resourceVersion, e.seen) || resourceVersion == e.seen && !e.stale {
		return
	}

	t.look(e, resourceVersion)
}

// look requests another read of an object.
func (t *Table) look(e *entry, seen string) {
	e.stale, e.seen = true, seen

	switch {
	case e.phase != Moving:
		t.move(e, Due)
	case seen == e.object.ResourceVersion: // the worker may not have read it
		e.news = e.news.and(Doubted)
	default:
		e.news = e.news.and(Sighted)
	}
}

// Released records that an object has lost its drain label by a resource version. If the object has not been seen
// since, the obligation ends and leaves a debt, because the object was not seen in its place. It reports whether this
// is the case.
func (t *Table) Released(now time.Time, id feed.ID, resourceVersion string) bool {
	defer t.check()

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
	e.lane.moved++
	e.object.Shard = "" // as far as is known
	t.end(now, e)

	return true
}

// Unlisted requests a read of the objects that have no available shard, or are being drained, as far as is known, and
// were missing in a complete list of such objects: this may have changed while no watch was open.
func (t *Table) Unlisted(drains bool, of func(feed.ID) bool) {
	defer t.check()

	for _, e := range sorted(maps.Values(t.entries)) {
		if o := e.object; of(o.ID) && drains == o.Draining && (drains || !t.available(o.Shard)) {
			t.look(e, e.seen)
		}
	}
}

// Recheck wakes every obligation, because the target has changed. available reports which shards may work on objects
// now. Recheck drops the obligations that keep refuses: their resource is no longer served in this way. If it is served
// in another way, it is listed again.
func (t *Table) Recheck(now time.Time, available func(shard string) bool, keep func(feed.ID) bool) {
	defer t.check()

	t.available = available
	for _, e := range sorted(maps.Values(t.entries)) {
		switch kept := keep(e.object.ID); {
		case e.phase == Moving && kept:
			e.news = Doubted
		case e.phase == Moving:
			e.news = Dropped
		case !kept:
			t.end(now, e)
			continue
		default:
			t.move(e, Due)
			e.unqueue()
			t.fitting(e).push(e) // the set of urgent objects has changed
		}

		e.succeed()
	}

	t.Search()
}

// Take hands out an obligation that is due. Objects whose followers have all moved come first, because they are one
// write away from their place: this completes owners one after another, and not all at the end. Objects that no shard
// works on come second. ok is false if nothing may be handed out now.
func (t *Table) Take(now time.Time) (job Job, ok bool) {
	defer t.check()

	t.Expire(now)

	for {
		e, lane := t.first()
		if e == nil {
			return Job{}, false
		}

		t.move(e, Moving)

		if t.takeTurn(e) {
			t.lanes.turn = lane
			t.lanes.jobs++
			e.news, e.begun = Quiet, t.followers.begun

			if c := e.cause; c.kind == kindPermit && e.holds == "" && c.shard == e.object.Shard && t.free(c) {
				t.hold(now, e, c.shard) // it has failed since it was granted one
			}

			return t.job(e), true
		}

		before := e.cause
		e.cause = TurnOf(t.main(e))
		t.move(e, Parked)
		t.permit(now, e)
		t.park(now, e, Outcome{Cause: e.cause})
		t.tried(e, before)
	}
}

// job returns what is known about a move.
func (t *Table) job(e *entry) Job {
	j := Job{
		Object: e.object, Stale: e.stale, Plain: e.plain,
		Within: cmp.Or(e.lane.within, firstWithin), Hung: max(hungAfter, 2*e.lane.usual),
		Permit: e.holds, Held: t.Held(e.object.Shard),
		Related: t.familyOf(e) != nil || t.Awaited(e.follows), Gathered: t.gatheredOf(e),
	}

	if owner := t.uids[t.main(e)]; owner != nil && owner != e {
		j.Follows, j.Given = new(owner.object), t.familyOf(owner) != nil
	}

	return j
}

// move changes the phase of an obligation and updates what depends on it.
func (t *Table) move(e *entry, to Phase) {
	before := e.phase
	if e.phase = to; to == before {
		return
	}

	t.phases[before]--
	t.phases[e.phase]++

	switch before { //nolint:exhaustive // nothing to leave
	case Due:
		e.unqueue()
	case Moving:
		t.endTurn(e)

		if e.lane.working--; e.hung {
			e.hung = false
			t.lanes.hung--
		}
	case Parked:
		t.unpark(e)
	}

	switch e.phase { //nolint:exhaustive // the caller does the rest
	case Due:
		t.stop(&e.timer)
		t.fitting(e).push(e)
	case Moving:
		e.lane.working++
	}
}

// fitting returns the queue for an obligation.
func (t *Table) fitting(e *entry) *queue {
	switch {
	case e.cause.kind == kindFollowers && t.gathered(t.familyOf(e)):
		return &e.lane.due[ready]
	case t.available(e.object.Shard) && !t.Awaited(e.follows):
		return &e.lane.due[regular]
	default:
		return &e.lane.due[urgent]
	}
}

// expedite moves an obligation that is due already to the urgent queue, if it has become urgent. Otherwise it would be
// processed after everything that became due before it.
func (t *Table) expedite(e *entry) {
	if fits := t.fitting(e); e.queue == &e.lane.due[regular] && fits != e.queue {
		e.unqueue()
		fits.push(e)
	}
}

// end drops an obligation.
func (t *Table) end(now time.Time, e *entry) {
	t.move(e, InPlace)
	delete(t.entries, e.object.ID)

	if t.uids[e.object.UID] == e {
		delete(t.uids, e.object.UID)
	}

	t.stop(&e.timer)
	e.succeed()

	if e.lane.entries--; e.lane.entries == 0 {
		e.lane.hanging, e.lane.reason = time.Time{}, "" // the next write shows it
	}

	t.hold(now, e, "")
	t.unplan(e)
	t.grantNext(now)
	t.wake(OwnerOf(e.object.ID))

	for _, uid := range e.follows {
		if f := t.families[uid]; f != nil {
			f.moved = now
		}
	}

	t.follow(e, feed.Lineage{})
	t.disband(e)
	t.tried(e, e.cause)

	if o := e.object; o.Unselected && o.Shard == "" && t.isMain(o) {
		t.debt.All = true // what follows the object has its labels still, and no source reports that it leaves the ring
	}
}

// Full reports whether so many obligations are in progress that sources should wait. Those whose writes hang do not
// count.
func (t *Table) Full() bool { return t.active()+t.waiting >= t.limits.Active }

// FullOfFollowers reports whether so many obligations are in progress that the search for followers should wait. The
// objects that wait for these do not count.
func (t *Table) FullOfFollowers() bool { return t.active() >= t.limits.Active }

// active returns the number of obligations in progress, without objects that wait for their followers. Objects that are
// failing do not count: nobody needs to wait for the end of that.
func (t *Table) active() int {
	return t.Ready() + t.phases[Moving] + t.phases[Delayed] - t.failing()
}

// Empty reports whether there is no obligation, including those that found no room.
func (t *Table) Empty() bool {
	return len(t.entries) == 0 && len(t.parked) == 0 && !t.missing
}

// Has reports whether there is an obligation for the object, and returns the object as it was last seen.
func (t *Table) Has(id feed.ID) (feed.Object, bool) {
	if e, ok := t.entries[id]; ok {
		return e.object, true
	}

	return feed.Object{}, false
}
