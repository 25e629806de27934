package spread_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/demo/internal/spread"
)

func TestFigures(t *testing.T) {
	even := spread.Spread{"a": 100, "b": 100, "c": 100, "d": 100}
	require.Equal(t, 400, even.Total())
	require.InDelta(t, 100, even.Mean(), 0)
	require.InDelta(t, 1, even.MaxToMean(), 0)
	require.InDelta(t, 1.05+3*8.660/100, even.Bound(), 0.0001) // sqrt(400 · 1/4 · 3/4)

	uneven := spread.Spread{"a": 300, "b": 100, "c": 0, "d": 0}
	require.InDelta(t, 3, uneven.MaxToMean(), 0)
	require.Greater(t, uneven.MaxToMean(), uneven.Bound())
	require.Equal(t, "400 objects over 4 shards, max/mean 3.00 (bound 1.31)", uneven.String())
}

func TestOneShardHasAll(t *testing.T) {
	s := spread.Spread{"only": 7}
	require.InDelta(t, 1, s.MaxToMean(), 0)
	require.InDelta(t, 1.05, s.Bound(), 0)
}

func TestNothing(t *testing.T) {
	for _, s := range []spread.Spread{nil, {"a": 0, "b": 0}} {
		require.Zero(t, s.Total())
		require.Zero(t, s.Mean())
		require.Zero(t, s.MaxToMean())
		require.InDelta(t, 1.05, s.Bound(), 0)
	}
	require.Empty(t, spread.Spread(nil).Bars(10))
}

func TestBars(t *testing.T) {
	const want = "" +
		"shard-1   ██████████  160 (50.0 %)\n" +
		"shard-10  █████       80 (25.0 %)\n" +
		"shard-2   ███▊        60 (18.8 %)\n" +
		"shard-3   █▎          20 (6.2 %)\n" +
		"shard-4               0 (0.0 %)\n"
	require.Equal(t, want, spread.Spread{"shard-1": 160, "shard-2": 60, "shard-10": 80, "shard-3": 20, "shard-4": 0}.Bars(10))
}
