package work

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// kinfolk is a table with an owner, its children and their children.
type kinfolk struct {
	*testing.T

	table   *Table
	version int
	now     time.Time
}

func newKinfolk(t *testing.T, parked int) *kinfolk {
	t.Helper()

	return &kinfolk{T: t, table: New(Limits{Workers: 1000, Drains: 10, PerShard: 10, DrainTimeout: time.Minute, Active: 100, Parked: parked}), now: time.Unix(1e9, 0)}
}

// one returns an object that follows the objects of the lineage, controller first.
func (k *kinfolk) one(name string, lineage ...types.UID) feed.Object {
	k.version++

	o := feed.Object{ID: id(name), UID: types.UID(name), ResourceVersion: strconv.Itoa(k.version), Shard: "dead", Labelled: true}
	if len(lineage) > 0 {
		o.Controller = &metav1.OwnerReference{UID: lineage[0]}
		copy(o.Above[:], lineage[1:])
	}

	return o
}

// seen makes the table see objects that are out of their places.
func (k *kinfolk) seen(all ...feed.Object) {
	for _, o := range all {
		k.table.See(k.now, o, false)
	}
}

// take takes what is due, by name.
func (k *kinfolk) take() map[string]feed.Object {
	all := map[string]feed.Object{}

	for {
		job, ok := k.table.Take(k.now)
		if !ok {
			return all
		}

		all[job.Object.Name] = job.Object
	}
}

func (k *kinfolk) blocked(o feed.Object, by Cause) {
	k.table.Report(k.now, o.ID, Outcome{Object: &o, Event: Blocked, Cause: by})
}

func (k *kinfolk) done(o feed.Object) {
	k.version++
	o.ResourceVersion, o.Shard = strconv.Itoa(k.version), "alive"
	k.table.Report(k.now, o.ID, Outcome{Object: &o, Event: SeenInPlace})
}

// An owner waits until all its followers have been searched, and are in their places. An object between them waits only for
// its own followers.
func TestOwnersWaitForWhatFollowsThem(t *testing.T) {
	k := newKinfolk(t, 100)
	owner, child, other, grandchild := k.one("o"), k.one("c", "o"), k.one("c2", "o"), k.one("g", "c", "o")
	k.seen(owner, child)
	k.take()
	k.blocked(owner, FollowersOf("o"))
	k.blocked(child, FollowersOf("c"))
	require.Empty(t, k.take(), "their followers have not been searched")

	k.seen(other, grandchild)
	k.table.Gathered("o")
	require.Len(t, k.take(), 2, "the grandchild and the child without children should be due")

	k.done(grandchild)
	require.Contains(t, k.take(), "c", "the followers of the owner's child were searched with it")
	k.done(child)
	require.Empty(t, k.take())
	k.done(other)
	require.Contains(t, k.take(), "o")
	require.Empty(t, k.table.families.waiting)
	require.Empty(t, k.table.families.following)
}

// An owner may stay behind its followers for a while. It is due when the time has passed, or if there are more of them.
func TestOwnerStaysBehindItsFollowers(t *testing.T) {
	k := newKinfolk(t, 100)
	owner, child := k.one("o"), k.one("c", "o")
	stays := func() {
		out := Outcome{Object: &owner, Event: Blocked, Cause: FollowersOf("o"), RetryAfter: time.Second}
		k.table.Report(k.now, owner.ID, out)
		require.Empty(t, k.take())

		at, ok := k.table.Next()
		require.True(t, ok)
		require.Equal(t, k.now.Add(time.Second), at)
	}

	k.table.Gathered("o")
	k.seen(owner)
	k.take()
	stays()

	k.seen(child)
	require.Contains(t, k.take(), "c")
	k.done(child)
	require.Contains(t, k.take(), "o")
	stays()

	k.now = k.now.Add(time.Second)
	require.Contains(t, k.take(), "o")
	k.done(owner)
	require.True(t, k.table.Empty())
}

// An object that has waited for its followers goes before all followers: owners move one after another, and not all at the end.
func TestOwnersDoNotWaitForEachOther(t *testing.T) {
	k := newKinfolk(t, 100)
	owner, child := k.one("o"), k.one("c", "o")
	second, other, another := k.one("o2"), k.one("c2", "o2"), k.one("c3", "o2")
	k.seen(owner, second, child, other, another)

	next := func() feed.Object {
		k.table.lanes.jobs = 0 // in order
		job, ok := k.table.Take(k.now)
		require.True(t, ok)

		return job.Object
	}

	for _, o := range []feed.Object{owner, second} {
		require.Equal(t, o.Name, next().Name)
		k.blocked(o, FollowersOf(o.UID))
	}

	k.table.Gathered("o")
	k.table.Gathered("o2")
	require.Equal(t, "c", next().Name)
	k.done(child)
	require.Equal(t, "o", next().Name, "all its followers have moved")
	require.Equal(t, "c2", next().Name)
}

// An object without a shard, and what follows it, go before everything else, also if they were due before.
func TestReleasedObjectsAreHastened(t *testing.T) {
	k := newKinfolk(t, 100)
	owner, child := k.one("o"), k.one("c", "o")
	owner.Shard, child.Shard = "alive", "alive"
	others := []feed.Object{k.one("x"), k.one("y")}

	for i := range others {
		others[i].Shard = "alive"
	}

	k.table.Recheck(k.now, func(shard string) bool { return shard == "alive" }, func(feed.ID) bool { return true })
	k.seen(append(others, child, owner)...)

	released := owner
	released.Shard, released.ResourceVersion = "", "1000"
	k.seen(released)

	next := func() string {
		job, ok := k.table.Take(k.now)
		require.True(t, ok)

		return job.Object.Name
	}

	require.ElementsMatch(t, []string{"o", "c"}, []string{next(), next()})
	require.Equal(t, "x", next())
}

// If a worker has read a child before its owner was released, the child does not keep waiting for the owner.
func TestChildIsLookedAtAgainWhenItsOwnerIsGivenUp(t *testing.T) {
	k := newKinfolk(t, 100)
	owner, child := k.one("o"), k.one("c", "o")
	k.seen(owner, child)
	require.Len(t, k.take(), 2)

	k.table.Given(owner) // while a worker has the child
	k.blocked(owner, FollowersOf("o"))
	k.blocked(child, OwnerOf(owner.ID))
	require.Contains(t, k.take(), "c")

	k.blocked(child, OwnerOf(owner.ID))
	require.Empty(t, k.take())
	k.table.Given(owner)
	require.Contains(t, k.take(), "c")
}

// A follower that finds no room is searched again when half of the room is free, and not before.
func TestFollowersWithoutRoomAreLookedForAgain(t *testing.T) {
	k := newKinfolk(t, 1)
	owner := k.one("o")
	k.seen(owner)
	k.take()
	k.blocked(owner, FollowersOf("o"))

	parents := []feed.Object{k.one("c", "o"), k.one("c2", "o"), k.one("c3", "o")}
	children := []feed.Object{k.one("g", "c", "o"), k.one("g2", "c2", "o"), k.one("g3", "c3", "o")}
	k.seen(children...)
	k.seen(parents...)
	k.take()

	for _, c := range parents {
		k.blocked(c, FollowersOf(c.UID))
	}

	k.table.Gathered("o")
	require.Len(t, k.table.entries, 5, "two of the parents should find no room")

	require.Empty(t, k.take(), "most of them would find no room again")

	for _, g := range children {
		k.done(g)
	}

	require.Len(t, k.take(), 1)

	_, owed := k.table.Debt()
	require.True(t, owed)
	require.Contains(t, k.take(), "o", "it should request a search for the rest")

	_, all := k.table.Followers(owner)
	require.False(t, all)
}

// A source that cannot determine what an object follows does not overwrite what is known.
func TestLineageIsKept(t *testing.T) {
	k := newKinfolk(t, 100)
	owner := k.one("o")
	k.seen(owner, k.one("g", "c", "o"))
	k.seen(k.one("g", "c"))
	n, _ := k.table.Followers(owner)
	require.Equal(t, 1, n)

	k.seen(k.one("g", "c2")) // it has another controller
	n, _ = k.table.Followers(owner)
	require.Zero(t, n)
}
