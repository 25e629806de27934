package takeover

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A Lease in a namespace that does not count keeps no object from moving, whatever it says.
func TestLeaseThatDoesNotCountHoldsNothing(t *testing.T) {
	for what, many := range map[string]bool{"one shard is read": false, "all shards are read": true} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.from = []string{w.ns}
			a, namesake := w.shard(), w.shard()
			namesake.Namespace, namesake.Duration = w.plane.Namespace(t), 24*time.Hour

			require.NoError(t, a.Acquire(t.Context()))
			require.NoError(t, a.Release(t.Context()))
			require.NoError(t, namesake.Acquire(t.Context()))
			w.observe()

			if many {
				for _, other := range []string{"b", "c", "d", "e", "f"} {
					w.ask(other)
				}
			}

			require.True(t, w.ask("a").Allowed)

			require.NoError(t, a.Acquire(t.Context()))
			w.step(trust)
			require.False(t, w.ask("a").Allowed, "the one that counts is held")
		})
	}
}

// The process of a shard whose namespace no longer counts may still work, like one whose Lease was deleted.
func TestShardOfANamespaceThatNoLongerCountsKeepsItsObjectsForAWhile(t *testing.T) {
	w := newWorld(t)
	a := w.shard()

	require.NoError(t, a.Acquire(t.Context()))
	w.observe()

	w.from = []string{"elsewhere"}
	w.observe()
	w.keeps()
}
