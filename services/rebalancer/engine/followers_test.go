package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

var secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

// controlled returns an object of a controlled resource.
func controlled(name, controller string) feed.Object {
	o := feed.Object{ID: feed.ID{GVR: secrets, Namespace: "default", Name: name}, UID: types.UID("uid-" + name)}
	if controller != "" {
		o.Controller = &metav1.OwnerReference{UID: types.UID("uid-" + controller)}
	}

	return o
}

// watchOf returns a watch whose list is complete.
func watchOf() (*state, *watch) {
	w := &watch{}
	w.begin(0)
	w.end(time.Time{})

	f := newFollowers()
	f.watches[idOf(forFollowers, resources.Resource{GVR: secrets})] = w

	return &state{gather: make(chan struct{}, 1), followers: f}, w
}

// Only a write that began after an object waits proves something, and only when the watch has shown it.
func TestWritesProveWhatAWatchHasShown(t *testing.T) {
	s, w := watchOf()
	wait := func() (number int) {
		s.followers.begun++

		return s.followers.begun
	}

	early := s.Writing(secrets.GroupResource())
	first := wait()
	late, other := s.Writing(secrets.GroupResource()), s.Writing(schema.GroupResource{Resource: "configmaps"})
	second := wait()

	early("10")
	other("10")
	require.False(t, w.reach("11"))
	require.Less(t, w.proven, first, "the write began before the object waited")

	late("20")
	require.False(t, w.reach("19"))
	require.Less(t, w.proven, first, "the watch has not shown the write")
	require.True(t, w.reach("20"))
	require.Equal(t, first, w.proven)

	again := s.Writing(secrets.GroupResource())

	require.False(t, w.reach("31"))
	again("30")
	require.Equal(t, second, w.proven, "the watch was faster than the answer")
	require.Len(t, s.gather, 1, "and the search is told")
	require.Empty(t, w.proofs)

	third := wait()

	for range 10 {
		s.Writing(secrets.GroupResource())("50")
	}

	require.Len(t, w.proofs, 1, "more writes prove nothing more")

	w.missed = true

	require.False(t, w.reach("60"))
	require.Less(t, w.proven, third, "something that the watch has shown was not used")
}

// A list proves what a write that began with it would prove. Until it is complete, nothing more is proven.
func TestListsProveWhatTheyShow(t *testing.T) {
	_, w := watchOf()

	w.begin(3)
	require.False(t, w.wrote(4, "10"))
	require.False(t, w.reach("20"))
	require.Zero(t, w.proven)

	w.end(time.Time{})
	require.Equal(t, 3, w.proven)

	w.begin(5)
	require.Equal(t, 3, w.proven, "what was proven stays proven")

	w.missed = true

	w.end(time.Time{})
	require.Equal(t, 3, w.proven, "something in the list was not used")
}

func TestAWatchKnowsWhatFollowsAnObject(t *testing.T) {
	s, w := watchOf()
	names := func(of string) (names []string) {
		for _, o := range s.followers.below(types.UID("uid-" + of)) {
			names = append(names, o.Name)
		}

		return names
	}

	w.show(controlled("child", "owner"))
	w.show(controlled("grandchild", "child"))
	w.show(controlled("stranger", "other"))
	require.Equal(t, []string{"child", "grandchild"}, names("owner"))

	w.show(controlled("grandchild", "other"))
	require.Equal(t, []string{"child"}, names("owner"))
	require.Equal(t, []string{"grandchild", "stranger"}, names("other"))

	// Users may make objects control each other in a circle.
	w.show(controlled("self", "self"))
	require.Subset(t, []string{"self"}, names("self"))
	w.show(controlled("self", ""))

	w.show(controlled("child", ""))
	require.Empty(t, names("owner"))
	require.Len(t, w.index, 1)

	for i := range fewObjects {
		w.show(controlled(fmt.Sprint("more-", i), "owner"))
	}

	require.Nil(t, w.index, "there are too many")
	require.True(t, w.show(controlled("more", "owner")))
}

// A list may show an object as it was before a write.
func TestAWatchIsNotSetBackByAList(t *testing.T) {
	s, w := watchOf()
	at := func(version string) feed.Object {
		o := controlled("child", "owner")
		o.Labelled, o.ResourceVersion = true, version

		return o
	}

	w.begin(0)
	s.followers.note(at("20"))
	require.False(t, w.show(at("10")))
	require.True(t, w.show(at("30")))
}

func TestWhereFollowersAreWatched(t *testing.T) {
	now := time.Unix(1000, 0)
	set := resourcesOf("secrets").Controlled()

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
			f := newFollowers()

			for i, namespace := range c.needed {
				if len(c.needed) > fewNamespaces {
					namespace = fmt.Sprint(i)
				}

				f.needed[namespace] = now
			}

			places := func(at time.Time) (all []string, until time.Time) {
				wanted, until := f.wanted(at, set, c.few)
				for id := range wanted {
					all = append(all, id.namespace)
				}

				slices.Sort(all)

				return all, until
			}

			got, until := places(now.Add(followersFor - 1))
			require.Equal(t, c.want, got)
			require.Equal(t, len(c.needed) == 0, until.IsZero())

			got, until = places(now.Add(followersFor))
			require.Empty(t, got, "nobody needs them any more")
			require.Zero(t, until)
		})
	}
}

// A watch lists again if nothing proves that it has shown all followers, but its lists take only a share of the time.
func TestWhenAWatchListsAgain(t *testing.T) {
	listed := time.Unix(1000, 0)
	w := &watch{index: map[types.UID]map[feed.ID]feed.Object{}, listed: listed}

	require.Equal(t, listed.Add(time.Second+proofShare*perList), w.again(listed.Add(time.Second), false))
	require.Equal(t, listed.Add(time.Second+busyShare*perList), w.again(listed.Add(time.Second), true))

	w.seen = 10_000 // a list costs 252 ms
	require.Equal(t, listed.Add(time.Second+proofWithin), w.again(listed.Add(time.Second), false))
	require.Equal(t, listed.Add(busyShare*(perList+10_000*perObject)), w.again(listed, true))

	w.index = nil
	require.Equal(t, listed.Add(perList+10_000*perObject), w.again(listed.Add(time.Second), false), "nothing else proves it")
}

// If a shard stops, no object is drained until the followers of objects are watched, or until that has taken too long.
func TestDrainsWaitForTheWatchOfFollowers(t *testing.T) {
	for name, c := range map[string]struct {
		stops   bool
		objects int
		follow  []string
		granted bool
	}{
		"a shard stops":                 {stops: true, objects: 1, follow: []string{"secrets"}},
		"no shard stops":                {objects: 1, follow: []string{"secrets"}, granted: true},
		"nothing follows objects":       {stops: true, objects: 1, granted: true},
		"there are too many objects":    {stops: true, objects: fewObjects + 1, follow: []string{"secrets"}, granted: true},
		"nobody knows how many objects": {stops: true, follow: []string{"secrets"}, granted: true},
	} {
		t.Run(name, func(t *testing.T) {
			e := unconnected("r")
			e.passes.objects = c.objects
			ring := target("r", c.follow...)
			ring.View = membership.NewView("r", []*coordinationv1.Lease{leaseOf("a", "a", false), leaseOf("b", "b", c.stops)}, nil)
			e.SetTarget(ring)

			o := configMap("object", "b")
			require.True(t, e.saw(ring, sight{object: o}))

			_, ok := e.next(t.Context())
			require.True(t, ok)
			require.Equal(t, c.granted, e.Grant(o.ID, "b"))
			require.Equal(t, c.stops && !c.granted || c.granted && len(c.follow) > 0, len(e.followers.needed) > 0)

			_, w := watchOf()
			e.followers.watches[idOf(forFollowers, resources.Resource{GVR: secrets})] = w
			e.found(nil, ring.Set.Controlled())
			require.True(t, e.Grant(o.ID, "b"))
		})
	}
}
