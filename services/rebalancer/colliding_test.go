package rebalancer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

// TestCollidingRings: two names with the same label, which somebody has searched. The younger ring moves nothing.
func TestCollidingRings(t *testing.T) {
	const first, second = "colliding-rings-of-a-very-long-name-abcdef-27184", "colliding-rings-of-a-very-long-name-abcdef-727"
	require.Equal(t, contract.ShardLabel(first), contract.ShardLabel(second))

	w := newTestRing(t, func(r *v1alpha1.ClusterRing) { r.Name = first })
	w.Join("a")
	object := w.Main("object", "")
	w.start()
	w.Eventually(ringtest.Placed{Shard: "a"}, object)
	w.AtRest()

	younger := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Name, r.Spec.NamespaceSelector = second, w.Ring.Spec.NamespaceSelector
	})
	younger.Join("y")

	c := younger.Assigned(v1alpha1.ReasonShardLabelInUse)
	require.Contains(t, c.Message, "ring "+first+", which is older, has the same suffix")
	require.Empty(t, younger.Ring.Finalizers)
	w.AtRest()
	require.Equal(t, ringtest.Placed{Shard: "a"}, w.Placed(object))
}
