package engine

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
)

// When a shard is lost, the watch for objects without an available shard continues from its position. Repeated events about
// objects that the shard once had, and has no longer, cost nothing.
func TestPastOfALostShardCostsNoRequest(t *testing.T) {
	r := newResting(t)
	all := target(r.ring)
	two := of(all, "a", "b")

	b := &leasetest.Shard{Client: r.plane.Client, Ring: r.ring, Namespace: r.ns, Name: "b"}
	require.NoError(t, b.Acquire(t.Context()))
	require.NoError(t, b.Release(t.Context()))

	name := ""
	for owner := ""; owner != "b"; {
		name += "x"
		owner, _ = two.View.Owner(key.Key{Kind: "ConfigMap", Namespace: r.ns, Name: name})
	}

	r.e.SetTarget(two)
	r.run()
	r.settle()

	gone := r.create("gone", "b")
	require.NoError(t, r.plane.Client.Delete(t.Context(), gone))

	still := r.create(name, "b")

	r.eventually(func() bool { // until the audit has reached these versions
		r.clock.Step(auditEvery)

		r.e.mu.Lock()
		defer r.e.mu.Unlock()

		version := r.e.history.reached[corev1.SchemeGroupVersion.WithResource("configmaps")]

		return version != "" && !feed.Older(version, still.ResourceVersion)
	})
	r.settle()

	before := len(r.since(0))
	r.e.SetTarget(of(all, "a"))
	r.eventuallyAssigned(still)
	r.settle()

	for _, request := range r.since(before) {
		require.False(t, strings.HasSuffix(strings.TrimSpace(request), "/gone"), request)
	}
}

func TestHistory(t *testing.T) {
	gvr := corev1.SchemeGroupVersion.WithResource("configmaps")
	at := func(shard, version string) feed.Object {
		return feed.Object{ID: feed.ID{GVR: gvr, Namespace: "n", Name: "o"}, Shard: shard, ResourceVersion: version}
	}

	h := newHistory()
	h.lose(sets.New("unknown"))
	require.False(t, h.past(at("unknown", "1")), "no version is known to have been reached")

	h.note(gvr, "9")
	h.note(gvr, "10")
	h.note(gvr, "8")
	h.lose(sets.New("b"))
	h.note(gvr, "11")

	require.True(t, h.past(at("b", "9")))
	require.True(t, h.past(at("b", "10")), "the list began after it")
	require.False(t, h.past(at("b", "11")))
	require.False(t, h.past(at("", "9")), "no list contains it")
	require.False(t, h.past(at("c", "9")), "no list contains it")

	many := sets.New[string]()
	for i := range manyLost {
		many.Insert(strings.Repeat("x", i+1))
	}

	h.lose(many)
	require.Len(t, h.until, manyLost, "the history should be limited")
}
