package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// found gives a holding so many objects that are at no available shard, and returns how many the engine knows of in all.
func found(g *goingOver, h *holding, from, to int) int {
	g.Helper()

	for i := from; i < to; i++ {
		id := objects.ID{GVR: corev1.SchemeGroupVersion.WithResource("configmaps"), Namespace: "n", Name: fmt.Sprint("lost-", i)}
		o := objects.Object{ID: id, ResourceVersion: "1", Shard: "lost", Labelled: true}
		g.e.observed(g.Context(), g.e.world(), sight{object: o, held: h})
	}

	return g.e.table.Ready()
}

// While a list is read, objects that it finds are not moved but for some: the API server would end it. They do not wait for ever.
func TestListsKeepBackWhatTheyFind(t *testing.T) {
	g := newGoingOver(t, 1)
	h := g.e.hold(g.e.world(), time.Second)
	require.Equal(t, heldNever, found(g, h, 0, heldNever+100))

	h.release(t.Context())
	require.Equal(t, heldNever+100, found(g, h, 0, 0))
	require.Equal(t, heldNever+101, found(g, h, 200, 201), "the list is over")

	h = g.e.hold(g.e.world(), time.Second)
	require.Equal(t, heldNever+101+heldNever, found(g, h, 300, 350))
	g.clock.Step(time.Second + 1)
	require.Equal(t, heldNever+101+51, found(g, h, 350, 351), "the list lasts too long")
	require.Equal(t, heldNever+101+52, found(g, h, 351, 352))
	require.Empty(t, h.objects)
}

// A list keeps back no more than there is room for.
func TestListsKeepBackSome(t *testing.T) {
	g := newGoingOver(t, 1)
	h := g.e.hold(g.e.world(), time.Hour)
	require.Equal(t, heldNever, found(g, h, 0, heldNever+heldAtMost))
	require.Equal(t, heldNever+heldAtMost+1, found(g, h, heldNever+heldAtMost, heldNever+heldAtMost+1))
}
