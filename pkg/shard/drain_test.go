package shard

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// If the drain names the next shard, the shard writes this name itself: no assigner must be asked.
func TestDrainNamesTheNextShard(t *testing.T) {
	for _, tc := range []struct{ drain, next string }{
		{"true", ""}, {"shard-1", "shard-1"}, {"shard-0", ""}, // its own name does not count as another shard
	} {
		t.Run(tc.drain, func(t *testing.T) {
			f := newFixture(t)
			s := f.shard("shard-0")
			s.term.unlimited()
			cm := f.configMap(s, "a")
			f.label(cm, s.drainKey, tc.drain)

			worker := s.Reconciler(f.admin, &corev1.ConfigMap{}, reconcile.Func(nothing))
			_, err := worker.Reconcile(t.Context(), request(cm))
			require.NoError(t, err)
			f.refresh(cm)
			require.Equal(t, tc.next, cm.Labels[s.shardKey])
			require.NotContains(t, cm.Labels, s.drainKey)
			require.False(t, s.Owns(cm))
		})
	}
}
