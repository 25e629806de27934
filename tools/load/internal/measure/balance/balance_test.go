package balance

import (
	"bytes"
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
)

func TestFullest(t *testing.T) {
	require.InDelta(t, 1, fullest([]int32{5, 5, 5}), 1e-9)
	require.InDelta(t, 1.5, fullest([]int32{1, 2, 3}), 1e-9)
}

// reported returns what is reported about findings, of what is selected.
func reported(t *testing.T, only string, found map[int][]finding) ([]result.Row, []result.Series) {
	t.Helper()

	m := Measurements()[0]
	m.Parts[0].Run = func(_ context.Context, b *run.Bench) error {
		report(b, found)
		return nil
	}
	p := &run.Plan{Measurements: []run.Measurement{m}, Only: regexp.MustCompile(only), Progress: &bytes.Buffer{}}
	rows, series, err := p.Do(t.Context(), run.Bench{Clock: clocktesting.NewFakeClock(time.Unix(0, 0))})
	require.NoError(t, err, "every id is announced")

	return rows, series
}

func TestReport(t *testing.T) {
	found := map[int][]finding{}
	for _, size := range []int{500, 100, 50, 10, 3} {
		found[size] = []finding{{1.01, 1.06}, {1.04, 1.07}}
	}

	rows, series := reported(t, "", found)

	var ids []string

	for _, row := range rows {
		require.Equal(t, []float64{1, 1}, row.Floor)
		require.Equal(t, result.JudgeValue, row.Judge)
		ids = append(ids, row.ID)

		want := []float64{1.01, 1.04}
		if strings.HasPrefix(row.ID, "moved") {
			want = []float64{1.06, 1.07}
		}
		require.Equal(t, want, row.Values)
	}
	require.Equal(t, []string{"balance-50", "moved-on-join-50"}, ids, "other sizes have no rows")

	require.Len(t, series, 2)
	require.True(t, slices.IsSortedFunc(series[0].Points, func(a, b result.Point) int { return int(a.X - b.X) }))
	require.Equal(t, result.Point{X: 100, Values: []float64{1.06, 1.07}, Floor: []float64{1, 1}}, series[1].Points[3])

	rows, series = reported(t, "^moved", found)
	require.Len(t, rows, 1)
	require.Len(t, series, 1)
}
