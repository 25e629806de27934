package engine

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/takeover"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// kind is the reason for a pass.
type kind string

const (
	noPass kind = "none"
	// change looks where a change may have misplaced objects, and check verifies that every object is in its place.
	change kind = "change"
	check  kind = "check"
	audit  kind = "audit"
)

// of returns the target with other available shards.
func of(t *Target, shards ...string) *Target {
	other := *t
	other.View = viewOf(t.View.RingName(), shards...)

	return &other
}

// If misplaced objects are moved to their places after each change of shards that redistributes any, none stays out of
// place, assuming that the watch finds the objects of dead shards.
func TestPassesAreOwedWhenObjectsAreRedistributed(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"}
	base, chance, away := target("r"), rand.New(rand.NewPCG(1, 2)), map[string]bool{} //nolint:gosec // the same in each run
	before, owed, unneeded := of(base), true, 0
	at := map[int]string{} // by object

	for step := range 200 {
		var shards []string

		for _, name := range names {
			// Most shards stay. Sometimes, none does.
			if away[name] = away[name] != (chance.IntN(8) == 0); !away[name] && step%50 != 49 {
				shards = append(shards, name)
			}
		}

		after := of(base, shards...)
		owed = owed || redistributes(before, after)
		before = after

		if step%3 == 0 {
			continue // some changes follow so quickly that no object moves between them
		}

		for i := range 2000 {
			owner, _ := after.View.Owner(key.Key{Kind: "ConfigMap", Namespace: "n", Name: fmt.Sprint(i)})
			if owed || !after.View.Available(at[i]) {
				at[i] = owner
			}

			require.Equal(t, owner, at[i], "step %d, object %d", step, i)
		}

		if !owed {
			unneeded++
		}

		owed = owed && step%2 != 0
	}

	require.Positive(t, unneeded, "some changes only kill shards")
}

// A shard is lost when it is no longer available, even if it still works, and once more when it no longer works.
func TestLostShards(t *testing.T) {
	with := func(stopping bool, holder string) *Target {
		t := *target("r")
		t.View = membership.NewView("r", []*coordinationv1.Lease{leaseOf("b", holder, stopping)}, nil)

		return &t
	}
	works, stops, free := with(false, "b"), with(true, "b"), with(true, "")

	require.Equal(t, []string{"b"}, sets.List(lostShards(works, stops)))
	require.Equal(t, []string{"b"}, sets.List(lostShards(stops, free)))
	require.Equal(t, []string{"b"}, sets.List(lostShards(works, free)))
	require.Empty(t, lostShards(stops, works))
	require.Empty(t, lostShards(free, stops))
	require.Empty(t, lostShards(nil, free))

	for _, t1 := range []*Target{works, stops, free} {
		for _, t2 := range []*Target{works, stops, free} {
			require.Equal(t, t1 == t2, t1.Same(t2))
		}
	}
}

// leaseOf returns the Lease of a shard, which may say that it stops.
func leaseOf(name, holder string, stopping bool) *coordinationv1.Lease {
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{contract.LabelClusterRing: "r"}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder,
			RenewTime: new(metav1.NewMicroTime(time.Unix(1_800_000_000, 0)))},
	}
	if stopping {
		l.Annotations = map[string]string{contract.AnnotationStopping: contract.OfferValue(l.Spec.RenewTime.Time)}
	}

	return l
}

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

// While a list is read, its objects are not moved: otherwise the API server would end the list. They do not wait
// forever.
func TestListsKeepBackWhatTheyFind(t *testing.T) {
	g := newGoingOver(t, 1)
	g.e.mover.Lookup.Namespaces = these{"n"}
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
	g.e.mover.Lookup.Namespaces = these{"n"}
	h := g.e.hold(time.Hour)
	require.Zero(t, found(g, h, 0, heldAtMost))
	require.Equal(t, heldAtMost+1, found(g, h, heldAtMost, heldAtMost+1))
}

// A read of an owner, or a pass, may see a drain just before it is acknowledged, and report it just after. The
// acknowledgement is not reported again. Such an object is therefore read once more.
func TestDrainThatTheWatchHasNotToldOfIsReadAgain(t *testing.T) {
	for name, watched := range map[string]bool{"reported by the watch": true, "reported by another source": false} {
		t.Run(name, func(t *testing.T) {
			ring := target("ring")
			e := unconnected("ring")
			e.SetTarget(ring)

			o := configMap("drained", "a")
			o.Draining = true
			require.True(t, e.saw(ring, &sight{object: o, watched: watched}))

			_, job, ok := e.take()
			require.True(t, ok)
			require.Equal(t, !watched, job.Stale)
		})
	}
}

// unconnected returns an engine that does not run and sends no request.
func unconnected(ring string) *Engine {
	return New(Config{
		Ring: ring, Objects: feed.NewClient(nil, contract.LabelKeysOf(ring, "")), Guard: takeover.New(ring, nil,
			clock.RealClock{}), Clock: clock.RealClock{},
		Limits: Limits{Workers: 1, Total: 1, PerShard: 1, DrainTimeout: time.Minute},
	})
}

// configMap returns a main object at a shard.
func configMap(name, shard string) feed.Object {
	return feed.Object{
		ID:    feed.ID{GVR: corev1.SchemeGroupVersion.WithResource("configmaps"), Namespace: "n", Name: name},
		UID:   types.UID(name),
		Shard: shard, Labelled: true, ResourceVersion: "1",
	}
}
