package balance

import (
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func everything(...string) bool { return true }

func TestFullest(t *testing.T) {
	require.InDelta(t, 1, fullest([]int32{5, 5, 5}), 1e-9)
	require.InDelta(t, 1.5, fullest([]int32{1, 2, 3}), 1e-9)
}

func TestRowsAndSeries(t *testing.T) {
	var f findings
	require.Empty(t, f.rows(everything))
	require.Empty(t, f.series(everything))

	for _, shards := range []int{500, 3, 100} {
		f.add(shards, 1.01, 1.06)
		f.add(shards, 1.04, 1.07)
	}

	ids := make([]string, 0, 3)

	for _, row := range f.rows(everything) {
		require.NoError(t, row.Check())
		require.Equal(t, []float64{1, 1}, row.Floor)
		ids = append(ids, row.ID)
	}
	require.Equal(t, []string{"balance-3", "balance-500", "moved-on-join-3"}, ids, "there is no row of 100 shards, and no target of movement at 500")
	require.Equal(t, []float64{1.01, 1.04}, f.rows(everything)[0].Values)
	require.Equal(t, []float64{1.06, 1.07}, f.rows(everything)[2].Values)

	series := f.series(everything)
	require.Len(t, series, 2)
	require.Equal(t, []float64{3, 100, 500}, []float64{series[0].Points[0].X, series[0].Points[1].X, series[0].Points[2].X})
	require.Equal(t, []float64{1.06, 1.07}, series[1].Points[0].Values)

	only := func(ids ...string) bool { return slices.ContainsFunc(ids, regexp.MustCompile("^moved").MatchString) }
	require.Len(t, f.rows(only), 1)
	require.Len(t, f.series(only), 1)
}

// Whatever can be found has an id that can be asked for.
func TestEveryIDIsAnnounced(t *testing.T) {
	var f findings
	for _, j := range slices.Concat(shares, joins) {
		f.add(j.shards, 1, 1)
	}

	announced := Measurements()[0].IDs
	for _, row := range f.rows(everything) {
		require.Contains(t, announced, row.ID)
	}

	for _, s := range f.series(everything) {
		require.Contains(t, announced, s.ID)
	}
	require.Len(t, announced, len(shares)+len(joins)+2)
}
