package rebalancer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

// With one active shard, the others stand by: an object moves only by a drain while its shard works, and at once when the shard is lost.
func TestOneActiveShard(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")
	w.start()

	cm := w.Main("cm", "")
	w.Eventually(ringtest.Placed{Shard: w.Owner("cm")}, cm)
	w.AtRest()

	w.edit(func(spec *v1alpha1.ClusterRingSpec) { spec.ActiveShards = new(int32(1)) })

	active, standby := "a", "b"
	if w.View().Available("b") {
		active, standby = standby, active
	}

	if w.Placed(cm).Shard == standby {
		w.Eventually(ringtest.Placed{Shard: standby, Drain: true}, cm)
		w.Acknowledge(cm)
	}

	w.Eventually(ringtest.Placed{Shard: active}, cm)
	w.AtRest()
	require.NoError(t, w.Shards[active].Release(t.Context()))
	w.Eventually(ringtest.Placed{Shard: standby}, cm)
	w.Join(active)

	w.AtRest()
	require.Equal(t, ringtest.Placed{Shard: standby}, w.Placed(cm), "a shard that comes back stands by")
}
