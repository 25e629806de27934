package work

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// An owner waits until all its followers have been searched, and are in their places. An object between them waits only
// for its own followers.
func TestOwnersWaitForWhatFollowsThem(t *testing.T) {
	p := newPlayer(t)
	p.limits("limits")

	// after plays events, and takes what is due then.
	after := func(events ...string) (due []string) {
		for _, event := range events {
			p.happen(strings.Fields(event))
		}

		for name := p.take(); name != ""; name = p.take() {
			due = append(due, name)
		}

		return due
	}

	require.Equal(t, []string{"o"}, after("see o v1 z"))
	require.Equal(t, []string{"c"}, after("gather o b", "report o blocked v1 z for followers o", "see c v2 z of o"))
	require.Empty(t, after("gather c b", "report c blocked v2 z of o for followers c"),
		"their followers have not been searched")
	require.ElementsMatch(t, []string{"g", "c2"},
		after("see c2 v3 z of o", "see g v4 z of c,o", "list begins", "list ends", "seek"),
		"the grandchild and the child without children should be due")
	require.Equal(t, []string{"c"}, after("report g seen v5 b of c,o"),
		"the followers of the owner's child were searched with it")
	require.Empty(t, after("report c seen v6 b of o"))
	require.Equal(t, []string{"o"}, after("report c2 seen v7 b of o"))
	require.Empty(t, p.table.following)
	require.Empty(t, after("report o seen v8 b"))
	require.Empty(t, p.table.families)
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
		o, missed := p.parse(name, words[1:])
		p.watch.Show(o)
		p.watch.Reached(o.ResourceVersion, len(missed) > 0)
	case "writes":
		p.watch.wrote(p.table.followers.begun, strings.TrimPrefix(name, "v"))
	case "controls":
		p.controls(name, len(words) > 1)
	case "seek":
		if _, again := p.table.Seek(p.now, true, true); len(again) > 0 {
			p.say("another list")
		}
	default:
		require.FailNow(p, "unknown event", verb)
	}

	return ""
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

		return func(version string) { x.wrote(e, Outcome{Version: version}) }
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

				x.followers.needed[namespace] = now
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
	w := &Watch{index: index[feed.ID]{}, listed: listed}

	require.Equal(t, listed.Add(time.Second+proofShare*perList), w.again(listed.Add(time.Second), false))
	require.Equal(t, listed.Add(time.Second+busyShare*perList), w.again(listed.Add(time.Second), true))

	w.seen = 10_000 // a list costs 252 ms
	require.Equal(t, listed.Add(time.Second+proofWithin), w.again(listed.Add(time.Second), false))
	require.Equal(t, listed.Add(busyShare*(perList+10_000*PerObject)), w.again(listed, true))

	w.index = nil
	require.Equal(t, listed.Add(perList+10_000*PerObject), w.again(listed.Add(time.Second), false),
		"nothing else proves it")
}
