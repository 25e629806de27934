package rest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/load/internal/result"
)

func TestRowsCompareTheMostObjectsWithNone(t *testing.T) {
	g := &growth{
		sizes: []int{0, 10, 100},
		rest: map[int][]sample{
			0:   {{cpu: 1, network: 2, memory: 3, requests: 4}, {cpu: 2, network: 2, memory: 3, requests: 4}},
			10:  {{cpu: 9}, {cpu: 9}},
			100: {{cpu: 1, network: 4, memory: 3, requests: 4}, {cpu: 2, network: 4, memory: 3, requests: 4}},
		},
		peak: 77,
	}
	met := map[string]bool{}

	for _, row := range g.rows() {
		require.NoError(t, row.Check())
		met[row.ID] = row.Met()
	}
	require.Equal(t, map[string]bool{cpuRow: true, networkRow: false, memoryRow: true, requestsRow: true, peakRow: true}, met)
}

func TestPointsOfOneSizeAreOnePoint(t *testing.T) {
	g := &growth{series: map[string]*result.Series{}}
	g.point(rateSeries, 10, 1, 2)
	g.point(rateSeries, 10, 3, 4)
	g.point(rateSeries, 20, 5, 0)
	require.Equal(t, []result.Point{
		{X: 10, Values: []float64{1, 3}, Floor: []float64{2, 4}}, {X: 20, Values: []float64{5}},
	}, g.series[rateSeries].Points)
	require.NotEmpty(t, g.series[rateSeries].Title)
}
