package engine

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// everywhere covers all namespaces.
type everywhere struct{}

func (everywhere) Selects(context.Context, string, labels.Selector) (bool, error) { return true, nil }

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
	g.e.Namespaces = everywhere{}
	h := g.e.hold(g.e.world(), time.Second)
	require.Equal(t, 1, found(g, h, 0, 100), "moving begins at once")

	h.release(t.Context())
	require.Equal(t, 100, found(g, h, 0, 0))
	require.Equal(t, 101, found(g, h, 100, 101), "the list is over")

	h = g.e.hold(g.e.world(), time.Second)
	require.Equal(t, 102, found(g, h, 101, 150))
	g.clock.Step(time.Second + 1)
	require.Equal(t, 151, found(g, h, 150, 151), "the list lasts too long")
	require.Equal(t, 152, found(g, h, 151, 152))
	require.Empty(t, h.objects)
}

// A list keeps back no more than there is room for.
func TestListsKeepBackSome(t *testing.T) {
	g := newGoingOver(t, 1)
	g.e.Namespaces = everywhere{}
	h := g.e.hold(g.e.world(), time.Hour)
	require.Equal(t, 1, found(g, h, 0, heldAtMost+1))
	require.Equal(t, heldAtMost+2, found(g, h, heldAtMost+1, heldAtMost+2))
}
