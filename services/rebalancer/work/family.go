package work

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// family is an object whose followers move to its next shard before it does: no shard works on the object, or it
// follows another object itself. A follower that is out of its place is an obligation like any other.
//
// Invariants:
//
//  1. A family belongs to one obligation. It ends with the obligation, and if its main object gets a shard that may
//     work.
//  2. An object goes only if its family is found, and no follower is out of its place.
//  3. A family is found only if watches have shown all followers since it began, and all of them were seen since it has
//     its next shard. It is not found after a follower was dropped.
//  4. An object that waits for its followers is woken when invariant 2 lets it go, and when its family ends.
//  5. An obligation counts as a follower of exactly the objects in its lineage. A main object has none.
type family struct {
	owner *entry
	state familyState
	// to is the next shard. moved is when one of the followers has last reached its place, or when the next shard changed.
	to    string
	moved time.Time
	// number is its number among all searches, and since is when the search began; zero until [Table.Seek] begins it.
	number int
	since  time.Time
	// handover contains the resource versions of the followers that have reached the next shard.
	handover contract.Handover
}

// familyState is what is known about the followers of a family.
type familyState uint8

const (
	// seeking means that there may be followers that nobody has seen.
	seeking familyState = iota
	// found means that all followers have been seen.
	found
	// idle means that a follower found no room: the search waits until there is some.
	idle
)

// FollowersOf is the cause that objects which follow the object with this UID are not in their places. The table itself
// wakes it when all of them are.
func FollowersOf(owner types.UID) Cause { return Cause{kind: kindFollowers, uid: owner} }

// Gathered is what is known about the objects that follow an object.
type Gathered struct {
	// All reports whether all of them are at the shard To, from the resource versions From on. Since is when the last of
	// them arrived; the time is later if that is not known.
	All   bool
	To    string
	From  contract.Handover
	Since time.Time
}

// familyOf returns the family of an object; nil if it has none.
func (t *Table) familyOf(e *entry) *family {
	if f := t.families[e.object.UID]; f != nil && f.owner == e {
		return f
	}

	return nil // or it is that of an obligation in another version of the resource
}

// gatheredOf returns what is known about the objects that follow an object.
func (t *Table) gatheredOf(e *entry) Gathered {
	f := t.familyOf(e)
	if f == nil {
		return Gathered{}
	}

	return Gathered{All: t.gathered(f), To: f.to, From: maps.Clone(f.handover), Since: f.moved}
}

// gather makes all followers of an object move to the shard to. They are urgent from now on, and no longer wait for the
// object. If they may be elsewhere, a search for them begins.
func (t *Table) gather(now time.Time, e *entry, to string) {
	o, f := e.object, t.familyOf(e)
	begins := f == nil

	switch {
	case begins:
		f = &family{owner: e}
		t.families[o.UID] = f
		t.wake(OwnerOf(o.ID))

		for _, follower := range sorted(maps.Keys(t.following[o.UID])) {
			t.expedite(follower)
		}
	case f.to == to:
		return
	}

	f.to, f.handover, f.moved = to, contract.Handover{}, now

	// What was proven stays proven, unless more followers may exist: a shard may work on what follows another object.
	t.seek(f, begins || !t.isMain(o) || !t.followers.indexed(o.Namespace))
}

// isMain reports whether an object is a main object that others may follow. It may have a controller, which is not in
// the ring.
func (t *Table) isMain(o feed.Object) bool { return t.permits.owners.Has(o.GVR.GroupResource()) }

// gathered reports whether all followers of a family are known to be in their places.
func (t *Table) gathered(f *family) bool {
	return f != nil && f.state == found && len(t.following[f.owner.object.UID]) == 0
}

// disband ends the family of an object, if it has one.
func (t *Table) disband(e *entry) {
	if t.familyOf(e) != nil {
		delete(t.families, e.object.UID)
		t.wake(FollowersOf(e.object.UID))
	}
}

// seek makes all followers of a family be found again; anew if what was proven about them is not enough. If the object
// follows another one that does the same, what is proven for that one is proven for all that follow it.
func (t *Table) seek(f *family, anew bool) {
	f.state, f.since, t.followers.news = seeking, time.Time{}, true

	if !anew {
		return
	}

	for _, uid := range f.owner.follows {
		if above := t.families[uid]; above != nil && t.followers.indexed(f.owner.object.Namespace) {
			f.number = above.number
			return
		}
	}

	t.followers.begun++
	f.number = t.followers.begun
}

// sought returns the families in a state, in an order that can be replayed.
func (t *Table) sought(in familyState) (all []*family) {
	for _, f := range t.families {
		if f.state == in {
			all = append(all, f)
		}
	}

	slices.SortFunc(all, func(a, b *family) int { return feed.Compare(a.owner.object.ID, b.owner.object.ID) })

	return all
}

// reunite wakes an object if all its followers have been found and have moved.
func (t *Table) reunite(owner types.UID) {
	if t.gathered(t.families[owner]) {
		t.wake(FollowersOf(owner))
	}
}

// Awaited reports whether one of these objects waits for what follows it.
func (t *Table) Awaited(by feed.Lineage) bool {
	return slices.ContainsFunc(by[:], func(uid types.UID) bool { return t.families[uid] != nil })
}

// reached records a follower in the hand-overs of the families whose next shard it has reached.
func (t *Table) reached(o feed.Object) {
	for _, uid := range o.Lineage() {
		if f := t.families[uid]; f != nil && f.to == o.Shard && !o.Draining {
			f.handover.Reached(o.GVR.GroupResource(), o.ResourceVersion)
		}
	}
}

// lineage returns the objects that an object follows: none if it is a main object, which may have a controller.
func (t *Table) lineage(o feed.Object) feed.Lineage {
	of := o.GVR.GroupResource()
	if !slices.ContainsFunc(t.followers.of, func(r resources.Resource) bool { return r.GroupResource() == of }) {
		return feed.Lineage{}
	}

	return o.Lineage()
}

// follow updates the objects that an obligation is counted as following. If the last follower of an object is gone, the
// object is woken.
func (t *Table) follow(e *entry, now feed.Lineage) {
	before := e.follows
	e.follows = now

	for _, uid := range now {
		if uid != "" {
			t.following.insert(uid, e)
		}
	}

	for _, uid := range before {
		if uid != "" && !slices.Contains(now[:], uid) && t.following.remove(uid, e) {
			t.reunite(uid)
		}
	}
}

// index contains what follows objects, by the UIDs of these. No set is empty.
type index[V comparable] map[types.UID]sets.Set[V]

func (x index[V]) insert(uid types.UID, v V) {
	if x[uid] == nil {
		x[uid] = sets.New[V]()
	}

	x[uid].Insert(v)
}

// remove reports whether nothing else is left with the UID.
func (x index[V]) remove(uid types.UID, v V) (last bool) {
	if last = x[uid].Delete(v).Len() == 0; last {
		delete(x, uid)
	}

	return last
}

// turn separates moves of a main object from moves of the objects that follow it: between the read of an owner and the
// end of the write that is based on it, the owner is neither drained nor moved.
//
// Invariants:
//
//  1. Workers have the main object, or any number of its followers. Different main objects are independent of each
//     other.
//  2. What does not get the turn is parked until the turn ends. No worker waits.
//  3. When a main object waits for its turn, no more of its followers join the turn in progress. It therefore gets its
//     turn, however many followers there are.
type turn struct {
	of types.UID
	// workers is the number of workers that have it. own reports whether it is the turn of the main object itself, and
	// deferred whether that one waits for it.
	workers       int
	own, deferred bool
}

// main returns the UID of the main object with which an obligation takes turns: itself, or the one that it follows.
func (t *Table) main(e *entry) types.UID {
	uid := e.object.UID

	if !t.isMain(e.object) {
		for _, above := range e.follows {
			if above != "" {
				uid = above
			}
		}
	}

	return uid
}

// takeTurn reports whether it is the turn of an obligation.
func (t *Table) takeTurn(e *entry) bool {
	of := t.main(e)
	if of == "" {
		return true
	}

	own, now := of == e.object.UID, t.turns[of]

	switch {
	case now == nil:
		now = &turn{of: of, own: own}
		t.turns[of] = now
	case own:
		now.deferred = true
		return false
	case now.own || now.deferred:
		return false
	}

	now.workers++
	e.turn = now

	return true
}

// endTurn records that no worker has an obligation anymore.
func (t *Table) endTurn(e *entry) {
	now := e.turn
	if e.turn = nil; now == nil {
		return
	}

	if now.workers--; now.workers == 0 {
		delete(t.turns, now.of)
		t.wake(TurnOf(now.of))
	}
}
