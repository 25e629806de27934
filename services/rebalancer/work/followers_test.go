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

var secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

// controlled returns an object of a controlled resource.
func controlled(name, controller string) feed.Object {
	o := feed.Object{ID: feed.ID{GVR: secrets, Namespace: "n", Name: name}, UID: types.UID(name)}
	if controller != "" {
		o.Controller = &metav1.OwnerReference{UID: types.UID(controller)}
	}

	return o
}

// watched returns a table whose followers are watched everywhere, and the watch. Its list is complete.
func watched() (*Table, *Watch) {
	x := New(Limits{Workers: 1000, Drains: 10, PerShard: 10, DrainTimeout: time.Minute, Active: 100, Parked: 100})
	x.Controlled(time.Time{}, []resources.Resource{{GVR: secrets, Namespaced: true}}, false)

	w := x.Watch(Place{Of: secrets.GroupResource()})
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

	early := write(secrets)
	first := wait()
	late, other := write(secrets), write(schema.GroupVersionResource{Resource: "configmaps"})
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

	again := write(secrets)

	w.Reached("31", false)
	require.False(t, x.News())
	again("30")
	require.Equal(t, second, w.proven, "the watch was faster than the answer")
	require.True(t, x.News(), "and the search is told")
	require.Empty(t, w.proofs)

	third := wait()

	for range 10 {
		write(secrets)("50")
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
	require.Equal(t, listed.Add(perList+10_000*PerObject), w.again(listed.Add(time.Second), false), "nothing else proves it")
}
