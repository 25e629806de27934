package work

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/internal/invariants"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// families counts the obligations that follow other objects. A follower that is out of its place is an obligation like any
// other. This type only knows how many there are, and whether all followers have been found.
type families struct {
	// following are the obligations by the UIDs of all objects that they follow.
	following byUID[*entry]
	// known contains the objects whose followers have all been found, including the followers of followers.
	known sets.Set[types.UID]
	// given contains the objects that were last seen without a shard: what follows them is urgent.
	given sets.Set[types.UID]
	// roomless contains the objects with a follower that found no room in the table, so that the followers must be searched again.
	roomless sets.Set[types.UID]
	// waiting contains the objects that wait for their own followers, by the UIDs of the objects that they follow.
	waiting byUID[types.UID]
}

func newFamilies() families {
	return families{following: byUID[*entry]{}, known: sets.New[types.UID](), given: sets.New[types.UID](), roomless: sets.New[types.UID](), waiting: byUID[types.UID]{}}
}

// FollowersOf is the cause that objects which follow the object with this UID are not in their places. The table itself wakes
// it when all of them are.
func FollowersOf(owner types.UID) Cause { return Cause{kind: kindFollowers, uid: owner} }

// Gathered records that all followers of the object have been seen since it was last released; see [Table.Followers].
func (t *Table) Gathered(owner types.UID) {
	if invariants.Enabled {
		defer t.check()
	}

	t.families.known.Insert(owner)
	t.reunite(owner)

	for _, uid := range sets.List(t.families.waiting[owner]) {
		t.reunite(uid)
	}
}

// Scattered records that the followers of the object are no longer all known. Call it also when a move ends.
func (t *Table) Scattered(owner types.UID) {
	if invariants.Enabled {
		defer t.check()
	}

	t.families.known.Delete(owner)
	t.families.roomless.Delete(owner)

	if t.families.known.Len() == 0 && len(t.families.waiting) == 0 {
		t.families.roomless = sets.New[types.UID]()
	}
}

// Followers returns how many direct and indirect followers of an object are out of their places. If all is false, there may be
// more: they have not been searched, or found no room.
func (t *Table) Followers(o feed.Object) (n int, all bool) {
	lineage := o.Lineage()
	all = t.families.known.Has(o.UID) || slices.ContainsFunc(lineage[:], t.families.known.Has)

	return t.families.following[o.UID].Len(), all && !t.families.roomless.Has(o.UID)
}

// Given wakes the objects that wait for an object, or are about to: the object has no shard now, and they move before it.
func (t *Table) Given(owner feed.Object) {
	if invariants.Enabled {
		defer t.check()
	}

	t.families.given.Insert(owner.UID)
	t.hastenBelow(owner.UID)
	t.wake(OwnerOf(owner.ID))

	for e := range t.moving {
		if slices.Contains(e.follows[:], owner.UID) {
			e.news = e.news.and(Doubted) // the worker may have read the object's previous state
		}
	}
}

// Redirect wakes the followers of the object that wait for their own followers.
func (t *Table) Redirect(owner types.UID) {
	if invariants.Enabled {
		defer t.check()
	}

	for _, uid := range sets.List(t.families.waiting[owner]) {
		t.wake(FollowersOf(uid))
	}
}

// give records whether an object, as it was just seen, has a shard.
func (t *Table) give(o feed.Object) {
	switch {
	case o.Shard != "":
		t.families.given.Delete(o.UID)
	case !t.families.given.Has(o.UID):
		t.families.given.Insert(o.UID)
		t.hastenBelow(o.UID)
	}
}

// hastenBelow makes what follows an object urgent, if it is due already: the object waits for it from now on.
func (t *Table) hastenBelow(owner types.UID) {
	all := t.families.following[owner].UnsortedList()
	slices.SortFunc(all, func(a, b *entry) int { return feed.Compare(a.object.ID, b.object.ID) })

	for _, e := range all {
		t.hasten(e)
	}
}

// follow updates the objects that an obligation is counted as following. If the last follower of an object is gone, the object
// is woken.
func (t *Table) follow(e *entry, now feed.Lineage) {
	for _, uid := range t.recount(e, now) {
		t.reunite(uid)
	}
}

// recount updates the counts for [Table.follow], wakes nothing, and returns the objects that have lost their last follower.
func (t *Table) recount(e *entry, now feed.Lineage) (alone []types.UID) {
	before := e.follows
	if before == now {
		return nil
	}

	waits := e.phase == Parked && e.cause.kind == kindFollowers
	if waits {
		t.waitsBelow(e, false)
	}

	e.follows = now

	if waits {
		t.waitsBelow(e, true)
	}

	for _, uid := range before {
		if !slices.Contains(now[:], uid) && t.families.following.remove(uid, e) {
			alone = append(alone, uid)
		}
	}

	for _, uid := range now {
		t.families.following.insert(uid, e)
	}

	return alone
}

// noRoom records that a follower of these objects found no room.
func (t *Table) noRoom(follows feed.Lineage) {
	for _, uid := range follows {
		if uid != "" {
			t.families.roomless.Insert(uid)
		}
	}
}

// reunite wakes an object if all its followers have moved.
func (t *Table) reunite(owner types.UID) {
	w, ok := t.parked[FollowersOf(owner)]
	if !ok {
		return
	}

	for e := range w.all {
		if t.together(e) {
			t.wake(FollowersOf(owner))
			return
		}
	}
}

// awaited reports whether an object that waits for this one exists, or is about to wait because it has no shard. The earlier this one moves, the earlier a shard works on
// that object again.
func (t *Table) awaited(e *entry) bool {
	return slices.ContainsFunc(e.follows[:], func(uid types.UID) bool { return uid != "" && (t.families.given.Has(uid) || t.Waits(FollowersOf(uid))) })
}

// together reports whether all followers of an object are known to be in their places.
func (t *Table) together(e *entry) bool {
	n, all := t.Followers(e.object)

	return n == 0 && all
}

// waitsBelow records whether an object that follows others waits for its own followers.
func (t *Table) waitsBelow(e *entry, now bool) {
	for _, uid := range e.follows {
		if now {
			t.families.waiting.insert(uid, e.cause.uid)
		} else {
			t.families.waiting.remove(uid, e.cause.uid)
		}
	}
}
