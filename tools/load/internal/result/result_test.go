package result_test

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/load/internal/result"
)

func TestSpread(t *testing.T) {
	values := []float64{5, 1, 3}
	median, low, high := result.Spread(values)
	require.Equal(t, []float64{3, 1, 5}, []float64{median, low, high})
	require.Equal(t, []float64{5, 1, 3}, values, "left as they are")

	median, low, high = result.Spread([]float64{4, 1, 2, 3})
	require.Equal(t, []float64{2.5, 1, 4}, []float64{median, low, high})

	median, low, high = result.Spread(nil)
	require.True(t, math.IsNaN(median) && math.IsNaN(low) && math.IsNaN(high))
}

func TestResultOfRatio(t *testing.T) {
	row := result.Row{Judge: result.JudgeRatio, Values: []float64{20, 12, 30}, Floor: []float64{10, 10, 10}}
	median, low, high := row.Result()
	require.Equal(t, []float64{2, 1.2, 3}, []float64{median, low, high})

	require.Equal(t, []float64{1, math.Inf(1)}, result.Ratios([]float64{0, 1}, []float64{0, 0}), "a floor of nothing")
}

func TestMet(t *testing.T) {
	for name, tc := range map[string]struct {
		row result.Row
		met bool
	}{
		"at most, below":      {result.Row{Judge: result.JudgeValue, Values: []float64{1}, Target: result.Target{Bound: result.AtMost, Value: 2}}, true},
		"at most, equal":      {result.Row{Judge: result.JudgeValue, Values: []float64{2}, Target: result.Target{Bound: result.AtMost, Value: 2}}, true},
		"at most, above":      {result.Row{Judge: result.JudgeValue, Values: []float64{3}, Target: result.Target{Bound: result.AtMost, Value: 2}}, false},
		"at least, below":     {result.Row{Judge: result.JudgeValue, Values: []float64{1}, Target: result.Target{Bound: result.AtLeast, Value: 2}}, false},
		"at least, equal":     {result.Row{Judge: result.JudgeValue, Values: []float64{2}, Target: result.Target{Bound: result.AtLeast, Value: 2}}, true},
		"the median counts":   {result.Row{Judge: result.JudgeValue, Values: []float64{1, 1, 9}, Target: result.Target{Bound: result.AtMost, Value: 2}}, true},
		"the ratio counts":    {result.Row{Judge: result.JudgeRatio, Values: []float64{9}, Floor: []float64{9}, Target: result.Target{Bound: result.AtMost, Value: 2}}, true},
		"no target":           {result.Row{Judge: result.JudgeValue, Values: []float64{1}}, true},
		"no value":            {result.Row{Judge: result.JudgeValue, Target: result.Target{Bound: result.AtMost, Value: 2}}, false},
		"no value, no target": {result.Row{Judge: result.JudgeValue}, false},
	} {
		require.Equal(t, tc.met, tc.row.Met(), name)
	}
}

func TestCheck(t *testing.T) {
	for want, row := range map[string]result.Row{
		"":                                      {ID: "r", Judge: result.JudgeRatio, Values: []float64{1}, Floor: []float64{1}},
		`row "r" has no value`:                  {ID: "r", Judge: result.JudgeValue},
		`has a value that is not finite: [NaN]`: {ID: "r", Judge: result.JudgeValue, Values: []float64{math.NaN()}},
		`is judged by "luck"`:                   {ID: "r", Judge: "luck", Values: []float64{1}},
		`has 1 values but 0 of its floor`:       {ID: "r", Judge: result.JudgeRatio, Values: []float64{1}},
		`has 2 values but 1 of its floor`:       {ID: "r", Judge: result.JudgeValue, Values: []float64{1, 2}, Floor: []float64{1}},
	} {
		if err := row.Check(); want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
		}
	}
}

func TestReportAsJSON(t *testing.T) {
	report := result.Report{
		Began: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Took: 1.5, Scale: "small", Version: "v1",
		Machine: result.Machine{CPU: "fast", Cores: 2, MemoryBytes: 1 << 30, OS: "Linux"},
		Rows: []result.Row{{
			ID: "r", Title: "a row", Unit: "µs", Values: []float64{1}, FloorTitle: "f", Floor: []float64{2}, Judge: result.JudgeRatio,
			Target: result.Target{Bound: result.AtMost, Value: 1.3, Unit: "×"}, PriorArt: "2", Notes: []string{"n"},
		}},
		Series: []result.Series{{ID: "s", Title: "t", Over: result.OverShards, Unit: "µs", Points: []result.Point{{X: 3, Values: []float64{1}, Floor: []float64{2}}}}},
	}

	var written bytes.Buffer
	require.NoError(t, report.Write(&written))
	require.Contains(t, written.String(), `"Took": 1.5`)

	read, err := result.Read(&written)
	require.NoError(t, err)
	require.Equal(t, &report, read)

	_, err = result.Read(strings.NewReader("{"))
	require.ErrorContains(t, err, "read a report")
}
