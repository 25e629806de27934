package engine

import (
	"fmt"
	"testing"

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
func watchOf() (*state, *kinOf) {
	of := &kinOf{members: map[types.UID]map[feed.ID]feed.Object{}, controllers: map[feed.ID]types.UID{}, listed: true}

	return &state{gather: make(chan struct{}, 1), kin: kin{of: map[schema.GroupResource]*kinOf{secrets.GroupResource(): of}}}, of
}

// Only a write that began after an object waits proves something, and only when the watch has shown it.
func TestWritesProveWhatAWatchHasShown(t *testing.T) {
	s, of := watchOf()
	wait := func() *family {
		s.kin.begun++

		return &family{number: s.kin.begun}
	}

	early := s.Writing(secrets.GroupResource())
	first := wait()
	late, other := s.Writing(secrets.GroupResource()), s.Writing(schema.GroupResource{Resource: "configmaps"})
	second := wait()

	early("10")
	other("10")
	require.False(t, of.reach("11"))
	require.False(t, s.kin.proven(first), "the write began before the object waited")

	late("20")
	require.False(t, of.reach("19"))
	require.False(t, s.kin.proven(first), "the watch has not shown the write")
	require.True(t, of.reach("20"))
	require.True(t, s.kin.proven(first))
	require.False(t, s.kin.proven(second))

	again := s.Writing(secrets.GroupResource())

	require.False(t, of.reach("31"))
	again("30")
	require.True(t, s.kin.proven(second), "the watch was faster than the answer")
	require.Len(t, s.gather, 1, "and whoever waits is told")
	require.Empty(t, of.proofs)
}

// A list proves what a write that began with it would prove. Until it is complete, nothing is proven.
func TestListsProveWhatTheyShow(t *testing.T) {
	s, of := watchOf()
	e := &Engine{state: s}
	s.kin.begun = 3
	sink := &kinSink{e: e, of: secrets.GroupResource()}

	sink.Begin()

	s.kin.begun = 4

	s.Writing(secrets.GroupResource())("10")
	require.False(t, of.reach("20"))
	require.False(t, s.kin.proven(&family{number: 1}))
	require.False(t, s.kin.watched([]resources.Resource{{GVR: secrets}}))
}

func TestAWatchKnowsWhatFollowsAnObject(t *testing.T) {
	s, of := watchOf()
	all := []resources.Resource{{GVR: secrets}}
	names := func(of string) (names []string) {
		for _, o := range s.kin.below(types.UID("uid-" + of)) {
			names = append(names, o.Name)
		}

		return names
	}

	require.False(t, s.kin.watched(nil))
	require.True(t, s.kin.watched(all))
	require.False(t, s.kin.watched(append(all, resources.Resource{GVR: schema.GroupVersionResource{Resource: "pods"}})))

	of.show(controlled("child", "owner"))
	of.show(controlled("grandchild", "child"))
	of.show(controlled("stranger", "other"))
	require.ElementsMatch(t, []string{"child", "grandchild"}, names("owner"))

	of.show(controlled("grandchild", "other"))
	require.Equal(t, []string{"child"}, names("owner"))
	require.ElementsMatch(t, []string{"grandchild", "stranger"}, names("other"))

	// Users may make objects control each other in a circle.
	of.show(controlled("self", "self"))
	require.Subset(t, []string{"self"}, names("self"))
	of.show(controlled("self", ""))

	of.show(controlled("child", ""))
	require.Empty(t, names("owner"))
	require.Len(t, of.members, 1)

	for i := range fewObjects {
		of.show(controlled(fmt.Sprint("more-", i), "owner"))
	}

	require.False(t, s.kin.watched(all), "there are too many")
}

// If a shard stops, no object is drained until the followers of objects are watched, or until the gatherer does without a watch.
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

			e.drainsMayBegin()
			require.True(t, e.Grant(o.ID, "b"))
		})
	}
}
