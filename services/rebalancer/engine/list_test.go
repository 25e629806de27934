package engine

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// everywhere covers all namespaces.
type everywhere struct{}

func (everywhere) Selects(context.Context, string, labels.Selector) (bool, error) { return true, nil }

// found passes objects without an available shard to a holding, and returns how many objects the engine knows in total.
func found(g *goingOver, h *holding, from, to int) int {
	g.Helper()

	for i := from; i < to; i++ {
		id := feed.ID{GVR: corev1.SchemeGroupVersion.WithResource("configmaps"), Namespace: "n", Name: fmt.Sprint("lost-", i)}
		o := feed.Object{ID: id, ResourceVersion: "1", Shard: "lost", Labelled: true}
		g.e.observe(g.Context(), sight{object: o, held: h})
	}

	return g.e.table.Ready()
}

// While a list is read, its objects are not moved: otherwise the API server would end the list. They do not wait forever.
func TestListsKeepBackWhatTheyFind(t *testing.T) {
	g := newGoingOver(t, 1)
	g.e.Namespaces = everywhere{}
	h := g.e.hold(time.Second)
	require.Zero(t, found(g, h, 0, 100))

	h.release(t.Context())
	require.Equal(t, 100, found(g, h, 0, 0))
	require.Equal(t, 101, found(g, h, 100, 101), "the list has ended")

	h = g.e.hold(time.Second)
	require.Equal(t, 101, found(g, h, 101, 150))
	g.clock.Step(time.Second + 1)
	require.Equal(t, 151, found(g, h, 150, 151), "the list lasts too long")
	require.Equal(t, 152, found(g, h, 151, 152))
	require.Empty(t, h.objects)
}

// A list does not hold back more objects than allowed.
func TestListsKeepBackSome(t *testing.T) {
	g := newGoingOver(t, 1)
	g.e.Namespaces = everywhere{}
	h := g.e.hold(time.Hour)
	require.Zero(t, found(g, h, 0, heldAtMost))
	require.Equal(t, heldAtMost+1, found(g, h, heldAtMost, heldAtMost+1))
}
