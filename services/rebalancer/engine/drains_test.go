package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/services/internal/takeover"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// Who reads an owner, or goes over all objects, may have seen a drain just before it was acknowledged, and tell of it just after: nobody
// tells of the acknowledgement again. So such an object is read once more.
func TestDrainThatTheWatchHasNotToldOfIsReadAgain(t *testing.T) {
	for name, watched := range map[string]bool{"told by the watch": true, "told by somebody else": false} {
		t.Run(name, func(t *testing.T) {
			ring := target("ring")
			e := New(Config{
				Ring: "ring", Guard: takeover.New("ring", nil, clock.RealClock{}), Clock: clock.RealClock{},
				Limits: Limits{Workers: 1, Total: 1, PerShard: 1, DrainTimeout: time.Minute},
			})
			e.SetTarget(ring)

			o := objects.Object{
				ID:    objects.ID{GVR: corev1.SchemeGroupVersion.WithResource("configmaps"), Namespace: "n", Name: "drained"},
				Shard: "a", Labelled: true, Draining: true, ResourceVersion: "1",
			}
			require.True(t, e.saw(ring, sight{object: o, watched: watched}))

			job, ok := e.next(t.Context())
			require.True(t, ok)
			require.Equal(t, !watched, job.Stale)
		})
	}
}
