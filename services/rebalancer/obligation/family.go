package obligation

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/internal/invariants"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// families says what follows the objects that others follow. What follows an object, and is out of its place, is an obligation like any
// other; here is only how many there are, and whether that is all.
type families struct {
	// following counts obligations by the UIDs of all whom they follow.
	following map[types.UID]int
	// known has whom all that follows was looked for. What follows those that follow is part of that.
	known sets.Set[types.UID]
	// roomless are those of whom something that follows them found no room, so that it has to be looked for once more.
	roomless sets.Set[types.UID]
	// waiting has, by the UIDs of whom they follow, the UIDs of those that wait for what follows them in turn.
	waiting map[types.UID]sets.Set[types.UID]
}

func newFamilies() families {
	return families{following: map[types.UID]int{}, known: sets.New[types.UID](), roomless: sets.New[types.UID](), waiting: map[types.UID]sets.Set[types.UID]{}}
}

// FollowersOf says that objects which follow the one of this UID are not in their places. It is woken by the table itself, when all of them are.
func FollowersOf(owner types.UID) Cause { return Cause{kind: kindFollowers, uid: owner} }

// Gathered says that all that follows the object of the UID was seen since it was last given up, so that [Table.Followers] knows.
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

// Scattered says that nobody knows any more what follows the object of the UID. It is for the end of a move, too.
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

// Followers returns how many objects follow one, or follow one that does, and are out of their places. If all is false there may be more: they
// were not looked for, or did not find room.
func (t *Table) Followers(o objects.Object) (n int, all bool) {
	lineage := o.Lineage()
	all = t.families.known.Has(o.UID) || slices.ContainsFunc(lineage[:], t.families.known.Has)

	return t.families.following[o.UID], all && !t.families.roomless.Has(o.UID)
}

// Given has those looked at again that wait for an object, or may be about to: it is nobody's, and they go before it.
func (t *Table) Given(owner objects.Object) {
	if invariants.Enabled {
		defer t.check()
	}

	t.wake(OwnerOf(owner.ID))

	for e := range t.moving {
		if slices.Contains(e.follows[:], owner.UID) {
			e.anew() // the worker may have looked before
		}
	}
}

// Redirect has those looked at again that follow the object of the UID and wait for what follows them.
func (t *Table) Redirect(owner types.UID) {
	if invariants.Enabled {
		defer t.check()
	}

	for _, uid := range sets.List(t.families.waiting[owner]) {
		t.wake(FollowersOf(uid))
	}
}

// follow counts an obligation among those that follow others, or ceases to. Whoever has nothing left that follows it, but for what found no room,
// has that looked for.
func (t *Table) follow(e *entry, now objects.Lineage) {
	for _, uid := range t.recount(e, now) {
		if t.families.roomless.Has(uid) {
			t.lookAgain(uid)
		} else {
			t.reunite(uid)
		}
	}
}

// lookAgain has that looked for which follows an object and found no room.
func (t *Table) lookAgain(uid types.UID) {
	t.families.roomless.Delete(uid)
	t.families.known.Delete(uid)

	if w, ok := t.parked[FollowersOf(uid)]; ok {
		for _, p := range w.entries {
			t.families.known.Delete(p.follows[:]...)
		}
	}

	t.wake(FollowersOf(uid))
}

// recount counts an obligation as [Table.follow] does, wakes nobody, and returns those whom nothing follows any more.
func (t *Table) recount(e *entry, now objects.Lineage) (alone []types.UID) {
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

	for _, uid := range now {
		if uid != "" {
			t.families.following[uid]++
		}
	}

	for _, uid := range before {
		if uid == "" {
			continue
		}

		if t.families.following[uid]--; t.families.following[uid] == 0 {
			delete(t.families.following, uid)
			alone = append(alone, uid)
		}
	}

	return alone
}

// scatter forgets an obligation that finds no room. Those it follows are not looked at, or all would be looked for again at once.
func (t *Table) scatter(now time.Time, e *entry) {
	for _, uid := range e.follows {
		if uid != "" {
			t.families.roomless.Insert(uid)
		}
	}

	t.recount(e, objects.Lineage{})
	t.end(now, e)
}

// reunite wakes an object if all that follows it has gone before.
func (t *Table) reunite(owner types.UID) {
	w, ok := t.parked[FollowersOf(owner)]
	if ok && slices.ContainsFunc(w.entries, func(p place) bool { return p.waits() && t.together(p.entry) }) {
		t.wake(FollowersOf(owner))
	}
}

// awaited reports whether an object goes before one that waits for it: the sooner it does, the sooner somebody works on that one again.
func (t *Table) awaited(e *entry) bool {
	return slices.ContainsFunc(e.follows[:], func(uid types.UID) bool { return uid != "" && t.Waits(FollowersOf(uid)) })
}

// together reports whether all that follows an object is known to be in its place.
func (t *Table) together(e *entry) bool {
	n, all := t.Followers(e.object)

	return n == 0 && all
}

// waitsBelow notes that an object which follows others waits for what follows it, or ceases to.
func (t *Table) waitsBelow(e *entry, now bool) {
	for _, uid := range e.follows {
		switch waiting := t.families.waiting[uid]; {
		case uid == "":
		case now && waiting == nil:
			t.families.waiting[uid] = sets.New(e.cause.uid)
		case now:
			waiting.Insert(e.cause.uid)
		default:
			if waiting.Delete(e.cause.uid); waiting.Len() == 0 {
				delete(t.families.waiting, uid)
			}
		}
	}
}
