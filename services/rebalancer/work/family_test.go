package work

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// kinfolk is a table with an owner, its children and their children.
type kinfolk struct {
	*testing.T

	table   *Table
	watch   *Watch
	version int
	now     time.Time
	// gathered is what the last job knows about followers.
	gathered Gathered
}

func newKinfolk(t *testing.T, parked int) *kinfolk {
	t.Helper()

	k := &kinfolk{T: t, now: time.Unix(1e9, 0)}
	k.table, k.watch = watched()
	k.table.limits.Parked = parked

	return k
}

// one returns an object that follows the objects of the lineage, controller first.
func (k *kinfolk) one(name string, lineage ...types.UID) feed.Object {
	k.version++

	o := feed.Object{ID: id(name), UID: types.UID(name), ResourceVersion: strconv.Itoa(k.version), Shard: "dead",
		Labelled: true}
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

		all[job.Object.Name], k.gathered = job.Object, job.Gathered
	}
}

// waits makes the worker that has an object report that the object waits for its followers.
func (k *kinfolk) waits(o feed.Object) {
	k.goes(o, "alive")
}

// found makes the watch show all followers.
func (k *kinfolk) found() {
	k.watch.Begin()
	k.watch.Listed(k.now)
	k.table.Seek(k.now, true, true)
}

// goes makes the worker that has an object report that what follows the object has to move to a shard first.
func (k *kinfolk) goes(o feed.Object, to string) {
	k.table.Report(k.now, o.ID, Outcome{Object: &o, Event: Blocked, Cause: FollowersOf(o.UID), To: to})
}

func (k *kinfolk) done(o feed.Object) {
	k.version++
	o.ResourceVersion, o.Shard = strconv.Itoa(k.version), "alive"
	k.table.Report(k.now, o.ID, Outcome{Object: &o, Event: SeenInPlace})
}

// An owner waits until all its followers have been searched, and are in their places. An object between them waits only
// for its own followers.
func TestOwnersWaitForWhatFollowsThem(t *testing.T) {
	k := newKinfolk(t, 100)
	owner, child, other, grandchild := k.one("o"), k.one("c", "o"), k.one("c2", "o"), k.one("g", "c", "o")
	k.seen(owner)
	k.take()
	k.waits(owner)
	k.seen(child)
	k.take()
	k.waits(child)
	require.Empty(t, k.take(), "their followers have not been searched")

	k.seen(other, grandchild)
	k.found()
	require.Len(t, k.take(), 2, "the grandchild and the child without children should be due")

	k.done(grandchild)
	require.Contains(t, k.take(), "c", "the followers of the owner's child were searched with it")
	k.done(child)
	require.Empty(t, k.take())
	k.done(other)
	require.Contains(t, k.take(), "o")
	require.Empty(t, k.table.following)
	k.done(owner)
	require.Empty(t, k.table.families)
}

// An owner may stay behind its followers for a while. It is due when the time has passed, or if there are more of them.
func TestOwnerStaysBehindItsFollowers(t *testing.T) {
	k := newKinfolk(t, 100)
	owner, child := k.one("o"), k.one("c", "o")
	stays := func(jobs map[string]feed.Object) {
		require.Contains(t, jobs, "o")
		require.True(t, k.gathered.All)

		out := Outcome{Object: &owner, Event: Blocked, Cause: FollowersOf("o"), To: "alive", RetryAfter: time.Second}
		k.table.Report(k.now, owner.ID, out)
		require.Empty(t, k.take())

		at, ok := k.table.Next()
		require.True(t, ok)
		require.Equal(t, k.now.Add(time.Second), at)
	}

	k.seen(owner)
	k.take()
	k.waits(owner)
	k.found()
	stays(k.take())

	k.seen(child)
	require.Contains(t, k.take(), "c")
	k.done(child)
	stays(k.take())

	k.now = k.now.Add(time.Second)
	require.Contains(t, k.take(), "o")
	k.done(owner)
	require.True(t, k.table.Empty())
}

// An object that has waited for its followers goes before all followers: owners move one after another, and not all at
// the end.
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
		k.waits(o)
	}

	k.found()
	require.Equal(t, "c", next().Name)
	k.done(child)
	require.Equal(t, "o", next().Name, "all its followers have moved")
	require.Equal(t, "c2", next().Name)
}

// An object without a shard goes before everything else, and so does what follows it as soon as it waits for that, also
// if they were due before.
func TestReleasedObjectsAreExpedited(t *testing.T) {
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

	require.Equal(t, "o", next())
	k.waits(released)
	require.Equal(t, "c", next())
	require.Equal(t, "x", next())
}

// A follower that finds no room is searched again when half of the room is free, and not before.
func TestFollowersWithoutRoomAreLookedForAgain(t *testing.T) {
	k := newKinfolk(t, 1)
	owner := k.one("o")
	k.seen(owner)
	k.take()
	k.waits(owner)

	parents := []feed.Object{k.one("c", "o"), k.one("c2", "o"), k.one("c3", "o")}
	children := []feed.Object{k.one("g", "c", "o"), k.one("g2", "c2", "o"), k.one("g3", "c3", "o")}
	k.seen(parents...)
	k.take()

	for _, c := range parents {
		k.waits(c)
	}

	k.seen(children...)
	k.take()
	k.found()
	require.Len(t, k.table.entries, 5, "two of the parents should find no room")

	require.Empty(t, k.take(), "most of them would find no room again")

	for _, g := range children {
		k.done(g)
	}

	require.Len(t, k.take(), 1, "one of the parents has found room, and its children have moved")

	_, owed := k.table.Debt()
	require.True(t, owed)
	require.Equal(t, seeking, k.table.families["o"].state, "it should request a search for the rest")
}

// A source that cannot determine what an object follows does not overwrite what is known.
func TestLineageIsKept(t *testing.T) {
	k := newKinfolk(t, 100)
	owner := k.one("o")
	k.seen(owner, k.one("g", "c", "o"))
	k.seen(k.one("g", "c"))
	require.Len(t, k.table.following["o"], 1)

	k.seen(k.one("g", "c2")) // it has another controller
	require.Empty(t, k.table.following["o"])
}

// A main object follows nobody, whatever its controller is: its owner does not wait for it. An edit of the ring can
// make it a controlled object, and the other way round.
func TestMainObjectFollowsNobody(t *testing.T) {
	k := newKinfolk(t, 100)
	owner := k.one("o")
	k.seen(owner, k.one("m", "o"))

	for _, mains := range []bool{true, false, true} {
		of := schema.GroupVersionResource{Resource: "secrets"}
		if !mains {
			of = things
		}

		k.table.Controlled(k.now, []resources.Resource{{GVR: of, Namespaced: true}}, false)
		require.Equal(t, mains, len(k.table.following["o"]) == 0)
	}

	k.seen(k.one("m2", "o"))
	require.Empty(t, k.table.following["o"])
}

// Another next shard makes the followers move there, but they are not looked for again, however often it changes. If a
// shard may have worked on the object meanwhile, they are: it may have created more of them.
func TestAnotherShardNeedsNoOtherList(t *testing.T) {
	k := newKinfolk(t, 100)
	k.table.Recheck(k.now, func(shard string) bool { return shard == "alive" }, func(feed.ID) bool { return true })
	k.table.Owners(k.now, sets.New(id("o").GVR.GroupResource()))

	owner := k.one("o", "a controller that is not in the ring")
	k.seen(owner)

	number := func(to string) int {
		k.table.gather(k.now, k.table.entries[owner.ID], to)

		return k.table.families["o"].number
	}

	require.Equal(t, 1, number("a"))
	require.Equal(t, 1, number("b"))

	k.see(owner, "alive")
	k.see(owner, "")
	require.Equal(t, 2, number("b"))
	require.Equal(t, 2, number("a"))

	k.watch.index = nil

	require.Equal(t, 3, number("b"), "nothing else knows what follows the object")
}

// see makes the table see an object at a shard, in another version.
func (k *kinfolk) see(o feed.Object, shard string) {
	k.version++
	o.ResourceVersion, o.Shard = strconv.Itoa(k.version), shard
	k.seen(o)
}

// family plays an event about objects that follow others, and returns the name of its object.
func (p *player) family(verb, name string, words []string) string {
	switch verb {
	case "gather":
		require.Equal(p, Moving, p.table.entries[id(name)].phase, "no worker has %s", name)

		e := p.table.entries[id(name)]
		p.table.gather(p.now, e, words[1])
		g := p.table.gatheredOf(e)
		p.say("all are there: %t, since %s", g.All, none(g.From[id(name).GVR.GroupResource()]))

		return name
	case "list":
		if name == "begins" {
			p.watch.Begin()
		} else {
			p.watch.Listed(p.now)
		}
	case "shows":
		o, _ := p.parse(name, words[1:])
		p.watch.Show(o)
		p.watch.Reached(o.ResourceVersion, false)
	case "writes":
		p.watch.wrote(p.table.followers.begun, strings.TrimPrefix(name, "v"))
	case "seek":
		if _, again := p.table.Seek(p.now, true, true); len(again) > 0 {
			p.say("another list")
		}
	default:
		require.FailNow(p, "unknown event", verb)
	}

	return ""
}

// An object does not wait forever because nobody can find out what another object follows.
func TestFamilyGoesWithoutWhatCannotBeUsed(t *testing.T) {
	k := newKinfolk(t, 1)
	owner := k.one("o")
	k.seen(owner)
	k.take()
	k.waits(owner)

	missed := func() map[string]feed.Object {
		k.watch.Begin()
		k.watch.Reached("1", true)
		k.watch.Listed(k.now)
		k.table.Seek(k.now, true, true)

		return k.take()
	}

	require.Empty(t, missed())

	k.now = k.now.Add(withoutThem)
	require.Contains(t, missed(), "o")
}

// The resource of an object may be served in another version. Its family is that of the new obligation from then on.
func TestFamilyInAnotherVersion(t *testing.T) {
	k := newKinfolk(t, 1)
	before := k.one("o")
	now := before
	now.GVR.Version = "v2"
	k.seen(before)
	k.take()
	k.waits(before)
	k.seen(now)
	k.take()
	k.waits(now)
	k.table.See(k.now, before, true)
	require.Equal(t, now.GVR, k.table.families["o"].owner.object.GVR)
}

// A follower that a watch has shown before and that finds no room is not taken for found.
func TestFamilyIsNotFoundIfAFollowerFindsNoRoom(t *testing.T) {
	k := newKinfolk(t, 1)
	k.table.lane(things.GroupResource()).hanging = k.now
	owner := k.one("o")
	k.seen(owner)
	k.take()
	k.waits(owner)
	k.watch.Begin()

	for _, name := range []string{"a", "b", "c"} {
		k.watch.Show(controlled(name, "o"))
	}

	k.watch.Listed(k.now)
	k.table.Seek(k.now, true, true)
	require.Equal(t, idle, k.table.families["o"].state)
}

// things are the controlled resource, of which all objects are.
var things = id("").GVR

// controlled returns an object of a controlled resource.
func controlled(name, controller string) feed.Object {
	o := feed.Object{ID: feed.ID{GVR: things, Namespace: "n", Name: name}, UID: types.UID(name)}
	if controller != "" {
		o.Controller = &metav1.OwnerReference{UID: types.UID(controller)}
	}

	return o
}

// watched returns a table whose followers are watched everywhere, and the watch. Its list is complete.
func watched() (*Table, *Watch) {
	x := New(Limits{Workers: 1000, Drains: 10, PerShard: 10, DrainTimeout: time.Minute, Active: 100, Parked: 100})
	x.Controlled(time.Time{}, []resources.Resource{{GVR: things, Namespaced: true}}, false)

	w := x.Watch(Place{Of: things.GroupResource()})
	w.Begin()
	w.Listed(time.Time{})

	return x, w
}

// Only a write that began after an object waits proves something, and only when the watch has shown it.
func TestWritesProveWhatAWatchHasShown(t *testing.T) {
	x, w := watched()
	wait := func() (number int) {
		x.followers.begun++

		return x.followers.begun
	}
	write := func(of schema.GroupVersionResource) func(version string) {
		e := &entry{begun: x.followers.begun, lane: x.lane(of.GroupResource())}

		return func(version string) { x.wrote(e, version) }
	}

	early := write(things)
	first := wait()
	late, other := write(things), write(schema.GroupVersionResource{Resource: "configmaps"})
	second := wait()

	early("10")
	other("10")
	w.Reached("11", false)
	require.Less(t, w.proven, first, "the write began before the object waited")

	late("20")
	w.Reached("19", false)
	require.Less(t, w.proven, first, "the watch has not shown the write")
	require.True(t, x.News()) // of the list
	w.Reached("20", false)
	require.Equal(t, first, w.proven)
	require.True(t, x.News())

	again := write(things)

	w.Reached("31", false)
	require.False(t, x.News())
	again("30")
	require.Equal(t, second, w.proven, "the watch was faster than the answer")
	require.True(t, x.News(), "and the search is told")
	require.Empty(t, w.proofs)

	third := wait()

	for range 10 {
		write(things)("50")
	}

	require.Len(t, w.proofs, 1, "more writes prove nothing more")

	w.Reached("60", true)
	require.Less(t, w.proven, third, "something that the watch has shown was not used")
}

// If a watch does not remember what it has shown, a write does not prove that a family has seen it.
func TestWritesProveNothingThatIsForgotten(t *testing.T) {
	x, w := watched()
	w.index = nil
	x.followers.begun++

	w.wrote(x.followers.begun, "20")
	w.Reached("30", false)
	require.Zero(t, w.proven)
}

// A list proves what a write that began with it would prove. Until it is complete, nothing more is proven.
func TestListsProveWhatTheyShow(t *testing.T) {
	x, w := watched()

	x.followers.begun = 3
	w.Begin()
	w.wrote(4, "10")
	w.Reached("20", false)
	require.Zero(t, w.proven)

	w.Listed(time.Time{})
	require.Equal(t, 3, w.proven)

	x.followers.begun = 5
	w.Begin()
	require.Equal(t, 3, w.proven, "what was proven stays proven")

	w.Reached("30", true)
	w.Listed(time.Time{})
	require.Equal(t, 3, w.proven, "something in the list was not used")
}

// What follows an object that waits is enqueued, as far as the watch remembers it.
func TestAWatchKnowsWhatFollowsAnObject(t *testing.T) {
	x, w := watched()
	names := func(of string) (names []string) {
		x.recall(time.Time{}, feed.Object{UID: types.UID(of)}, 3)

		for e := range x.following[types.UID(of)] {
			names = append(names, e.object.Name)
		}

		slices.Sort(names)

		for id := range x.entries {
			x.end(time.Time{}, x.entries[id])
		}

		return names
	}

	w.Show(controlled("child", "owner"))
	w.Show(controlled("grandchild", "child"))
	w.Show(controlled("stranger", "other"))
	require.Equal(t, []string{"child", "grandchild"}, names("owner"))

	w.Show(controlled("grandchild", "other"))
	require.Equal(t, []string{"child"}, names("owner"))
	require.Equal(t, []string{"grandchild", "stranger"}, names("other"))

	// Users may make objects control each other in a circle.
	w.Show(controlled("self", "self"))
	require.Equal(t, []string{"self"}, names("self"))
	w.Show(controlled("self", ""))

	w.Show(controlled("child", ""))
	require.Empty(t, names("owner"))
	require.Len(t, w.index, 1)

	for i := range maxIndexed {
		w.Show(controlled(fmt.Sprint("more-", i), "owner"))
	}

	require.Nil(t, w.index, "there are too many")
	require.True(t, w.show(controlled("more", "owner")))
}

// A list may show an object as it was before a write.
func TestAWatchIsNotSetBackByAList(t *testing.T) {
	x, w := watched()
	at := func(version string) feed.Object {
		o := controlled("child", "owner")
		o.Labelled, o.ResourceVersion = true, version

		return o
	}

	w.Begin()
	x.followers.note(at("20"))
	require.False(t, w.show(at("10")))
	require.True(t, w.show(at("30")))
}

func TestWhereFollowersAreWatched(t *testing.T) {
	now := time.Unix(1000, 0)

	for name, c := range map[string]struct {
		needed []string
		few    bool
		want   []string
	}{
		"nowhere":                  {few: true},
		"by namespace":             {needed: []string{"one", "two"}, want: []string{"one", "two"}},
		"everywhere: few objects":  {needed: []string{"one", "two"}, few: true, want: []string{""}},
		"everywhere: without any":  {needed: []string{"one", ""}, want: []string{""}},
		"everywhere: many of them": {needed: strings.Split(strings.Repeat("x", fewNamespaces), "x"), want: []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			x, _ := watched()

			for i, namespace := range c.needed {
				if len(c.needed) > fewNamespaces {
					namespace = fmt.Sprint(i)
				}

				x.followers.need(now, feed.ID{Namespace: namespace})
			}

			places := func(at time.Time) (all []string) {
				wanted, _ := x.Seek(at, c.few, true)
				for at := range wanted {
					all = append(all, at.Namespace)
				}

				slices.Sort(all)

				return all
			}

			require.Equal(t, c.want, places(now.Add(followersFor-1)))

			end, ok := x.Next()
			require.Equal(t, len(c.needed) > 0, ok)
			require.True(t, !ok || end.Equal(now.Add(followersFor)))

			require.Empty(t, places(now.Add(followersFor)), "nobody needs them any more")

			_, ok = x.Next()
			require.False(t, ok)
		})
	}
}

// A watch lists again if nothing proves that it has shown all followers, but its lists take only a share of the time.
func TestWhenAWatchListsAgain(t *testing.T) {
	listed := time.Unix(1000, 0)
	w := &Watch{index: map[types.UID]map[feed.ID]feed.Object{}, listed: listed}

	require.Equal(t, listed.Add(time.Second+proofShare*perList), w.again(listed.Add(time.Second), false))
	require.Equal(t, listed.Add(time.Second+busyShare*perList), w.again(listed.Add(time.Second), true))

	w.seen = 10_000 // a list costs 252 ms
	require.Equal(t, listed.Add(time.Second+proofWithin), w.again(listed.Add(time.Second), false))
	require.Equal(t, listed.Add(busyShare*(perList+10_000*PerObject)), w.again(listed, true))

	w.index = nil
	require.Equal(t, listed.Add(perList+10_000*PerObject), w.again(listed.Add(time.Second), false),
		"nothing else proves it")
}
