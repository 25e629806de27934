//go:build invariants

package work

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// A corrupt table panics at the next change.
func TestCorruptTablePanics(t *testing.T) {
	now := time.Unix(1_000_000_000, 0)
	x := New(Limits{Workers: 1000, Drains: 1, PerShard: 1, DrainTimeout: time.Minute, Active: 10, Parked: 10})
	x.See(now, feed.Object{ID: id("o"), ResourceVersion: "1", Shard: "a"}, false)

	x.phases[Parked]++
	require.Panics(t, func() { x.See(now, feed.Object{ID: id("p"), ResourceVersion: "2", Shard: "a"}, false) })
}
