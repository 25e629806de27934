package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/takeover"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// A read of an owner, or a pass, may see a drain just before it is acknowledged, and report it just after. The acknowledgement
// is not reported again. Such an object is therefore read once more.
func TestDrainThatTheWatchHasNotToldOfIsReadAgain(t *testing.T) {
	for name, watched := range map[string]bool{"reported by the watch": true, "reported by another source": false} {
		t.Run(name, func(t *testing.T) {
			ring := target("ring")
			e := unconnected("ring")
			e.SetTarget(ring)

			o := configMap("drained", "a")
			o.Draining = true
			require.True(t, e.saw(ring, sight{object: o, watched: watched}))

			_, job, ok := e.take()
			require.True(t, ok)
			require.Equal(t, !watched, job.Stale)
		})
	}
}

// unconnected returns an engine that does not run and sends no request.
func unconnected(ring string) *Engine {
	return New(Config{
		Ring: ring, Objects: feed.NewClient(nil, contract.LabelKeysOf(ring, "")), Guard: takeover.New(ring, nil, clock.RealClock{}), Clock: clock.RealClock{},
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
