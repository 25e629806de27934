package rebalancer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

// A shard that says that it stops keeps each object until it has released it. When it has released its Lease, it loses the rest.
func TestShardThatStopsIsDrained(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")

	var owners []*corev1.ConfigMap

	children := map[string]*corev1.Secret{}

	for _, name := range w.NamesOf("b", 3) {
		cm := w.Main(name, "b")
		owners, children[name] = append(owners, cm), w.Child(cm, "b")
	}

	w.start()
	w.AtRest()
	require.NoError(t, w.Shards["b"].Stop(t.Context()))

	for _, cm := range owners {
		w.Eventually(ringtest.Placed{Shard: "b", Drain: true}, cm)
		require.Equal(t, ringtest.Placed{Shard: "b"}, w.Placed(children[cm.Name]))
	}

	fresh := w.Main("fresh", "") // the rebalancer knows that the shard stops
	w.Eventually(ringtest.Placed{Shard: "a"}, fresh)

	w.Assigned(v1alpha1.ReasonMoving)
	require.Empty(t, w.Ring.Status.Assignment.LostShards, "it works")

	for _, cm := range owners[:2] {
		w.Acknowledge(cm)
		w.Eventually(ringtest.Placed{Shard: "a"}, cm, children[cm.Name])
	}

	last := owners[2]
	require.Equal(t, ringtest.Placed{Shard: "b", Drain: true}, w.Placed(last))
	require.NoError(t, w.Shards["b"].Release(t.Context()))
	w.Eventually(ringtest.Placed{Shard: "a"}, last, children[last.Name])
	w.AtRest()
}

// A shard that stops keeps its objects if it is the only one. A process that comes back under its name has them.
func TestTheOnlyShardThatStopsKeepsItsObjects(t *testing.T) {
	w := newTestRing(t)
	w.Join("a")

	cm := w.Main(w.NamesOf("a", 1)[0], "a")

	w.start()
	w.AtRest()
	require.NoError(t, w.Shards["a"].Stop(t.Context()))
	require.Eventually(t, func() bool {
		require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))

		return w.Ring.Status.Assignment.Fingerprint == ""
	}, 20*time.Second, 20*time.Millisecond, "the rebalancer should know that no shard is available")

	version := w.Versions(cm)

	w.Join("a")
	w.AtRest()
	require.Equal(t, version, w.Versions(cm))
}
