package report

import (
	"flag"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/load/internal/result"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func sample() *result.Report {
	cpu := "CPU is of the process, user and system."

	return &result.Report{
		Began: time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC), Took: 18*60 + 12.345, Scale: "full", Version: "v1.2.3",
		Machine: "2 cores of a processor",
		Results: result.Results{
			Rows: []result.Row{
				{
					ID: "admission-3", Title: "assigner CPU per admission, 3 shards", Unit: "µs", Values: []float64{212, 230, 220},
					FloorTitle: "no-op webhook",
					Floor:      []float64{190, 191, 192}, Target: result.Target{Bound: result.AtMost,
						Value: 1.3},
					PriorArt: "1.9× / 2.2×", Notes: []string{cpu},
				},
				{
					ID: "just-not", Title: "just | not", Unit: "µs", Values: []float64{130.04}, Floor: []float64{100},
					Target: result.Target{Bound: result.AtMost, Value: 1.3}, Notes: []string{"One round.", cpu},
				},
				{
					ID: "memory", Title: "rebalancer memory", Unit: "MiB", Values: []float64{64.25, 61, 70},
					Target: result.Target{Bound: result.AtMost, Value: 128},
				},
				{
					ID: "moves", Title: "objects moved per second", Unit: "objects/s", Values: []float64{1234, 1300},
					FloorTitle: "raw PATCH", Floor: []float64{1500, 1510},
					Target: result.Target{Bound: result.AtLeast, Value: 0.85},
				},
				{
					ID: "calls", Title: "calls for others", Values: []float64{0, 0},
					Target: result.Target{Bound: result.AtMost, Value: 0},
				},
				{
					ID: "told", Title: "only told", Unit: "s", Values: []float64{0.04}, FloorTitle: "the same at 0",
				},
			},
			Charts: []result.Chart{
				{ID: "admission", Title: "CPU per admission [all]", Lines: []result.Line{{Points: []result.XY{{X: 3, Y: 212}}}}},
				{ID: "memory", Title: "Memory", Lines: []result.Line{{Points: []result.XY{{X: 1000, Y: 61}}}}},
			},
		},
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()

	file := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644)) //nolint:gosec // a file of the repository
	}

	want, err := os.ReadFile(file) //nolint:gosec // a file of the repository
	require.NoError(t, err, "go test -update writes it")
	require.Equal(t, string(want), got)
}

func TestMarkdown(t *testing.T) { golden(t, "report.md", Markdown(sample())) }

func TestFilesThatCannotBeWritten(t *testing.T) {
	r := sample()
	r.Charts[1].Lines = nil
	_, err := Files(r)
	require.ErrorContains(t, err, `draw the chart "memory"`)

	r = sample()
	r.Rows[0].Values[0] = math.NaN()
	_, err = Files(r)
	require.ErrorContains(t, err, "write the report")
}

// The golden files are pictures: look at them.
func TestCharts(t *testing.T) {
	through := func(name string, dashed bool, values ...float64) result.Line {
		l := result.Line{Name: name, Dashed: dashed}
		for i, v := range values {
			l.Points = append(l.Points, result.XY{X: float64(i + 1), Y: v, Hollow: v == 4.5})
		}

		return l
	}

	balance, ideal := through("fullest shard", false), through("floor", true)
	for x := 3.0; x <= 1000; x *= 1.5 {
		balance.Points = append(balance.Points, result.XY{X: math.Round(x), Y: 1.03})
		ideal.Points = append(ideal.Points, result.XY{X: math.Round(x), Y: 1})
	}

	for _, c := range []result.Chart{
		{ID: "balance", Title: "Balance: fullest shard / mean", X: "shards", Y: "×", Logarithmic: true,
			Lines: []result.Line{balance, ideal}},
		{
			ID: "wide", Title: "Network of a service < its floor, with objects that nothing happens to, some minutes after the " +
				"last one was created & assigned", X: "objects", Y: "bytes/s", Logarithmic: true,
			Lines: []result.Line{{Name: "median of the rounds", Points: []result.XY{
				{X: 0, Y: 10}, {X: 1000, Y: 20}, {X: 10_000, Y: 300}, {X: 200_000, Y: 12_345},
			}}},
		},
		{ID: "nothing", Title: "Requests per object at rest", X: "objects", Logarithmic: true,
			Lines: []result.Line{{Name: "median of the rounds", Points: []result.XY{{X: 0, Y: 0}}}}},
		{ID: "lines", Title: "Changes per second: n shards / one", X: "shards", Y: "×", Limit: 4.9, Marks: []float64{2, 3.5},
			Lines: []result.Line{
				through("ideal", true, 1, 2, 3, 4, 5), through("services", false, 1, 1.9, 3, 4.5), {Name: "none"},
			}},
		{ID: "stacked", Title: "CPU by process", X: "seconds", Y: "cores", Stacked: true, Lines: []result.Line{
			through("shards", false, 0.5, 0.6, 0.7), through("assigner", false, 0.1, 0.1, 0.2),
			through("rebalancer", false, 0.1, 0, 0.3),
		}},
	} {
		svg, err := drawn(&c)
		require.NoError(t, err)
		golden(t, c.ID+".svg", svg)
	}

	_, err := drawn(&result.Chart{ID: "c", Lines: []result.Line{{Name: "none"}}})
	require.EqualError(t, err, `draw the chart "c": no values`)

	for want, point := range map[string]result.XY{
		"3, NaN": {X: 3, Y: math.NaN()}, "3, -1": {X: 3, Y: -1}, "-3, 1": {X: -3, Y: 1}, "3, +Inf": {X: 3, Y: math.Inf(1)},
	} {
		_, err = drawn(&result.Chart{ID: "c", Lines: []result.Line{{Points: []result.XY{point}}}})
		require.EqualError(t, err, `draw the chart "c": `+want+" cannot be drawn")
	}
}
