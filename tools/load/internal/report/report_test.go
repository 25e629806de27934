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
		Machine: result.Machine{CPU: "a processor", Cores: 2, MemoryBytes: 8 << 30, OS: "Linux 6.1"},
		Results: result.Results{
			Rows: []result.Row{
				{
					ID: "admission-3", Title: "assigner CPU per admission, 3 shards", Unit: "µs", Values: []float64{212, 230, 220},
					FloorTitle: "no-op webhook",
					Floor:      []float64{190, 191, 192}, Judge: result.JudgeRatio, Target: result.Target{Bound: result.AtMost,
						Value: 1.3},
					PriorArt: "1.9× / 2.2×", Notes: []string{cpu},
				},
				{
					ID: "just-not", Title: "just | not", Unit: "µs", Values: []float64{130.04}, Floor: []float64{100},
					Judge:  result.JudgeRatio,
					Target: result.Target{Bound: result.AtMost, Value: 1.3}, Notes: []string{"One round.", cpu},
				},
				{
					ID: "memory", Title: "rebalancer memory", Unit: "MiB", Values: []float64{64.25, 61, 70}, Judge: result.JudgeValue,
					Target: result.Target{Bound: result.AtMost, Value: 128},
				},
				{
					ID: "moves", Title: "objects moved per second", Unit: "objects/s", Values: []float64{1234, 1300},
					FloorTitle: "raw PATCH", Floor: []float64{1500, 1510},
					Judge: result.JudgeRatio, Target: result.Target{Bound: result.AtLeast, Value: 0.85},
				},
				{
					ID: "calls", Title: "calls for others", Values: []float64{0, 0}, Judge: result.JudgeValue,
					Target: result.Target{Bound: result.AtMost, Value: 0},
				},
				{
					ID: "told", Title: "only told", Unit: "s", Values: []float64{0.04}, FloorTitle: "the same at 0",
					Judge: result.JudgeValue,
				},
			},
			Series: []result.Series{
				{
					ID: "admission", Title: "CPU per admission [all]", Over: result.OverShards, Unit: "µs",
					Points: []result.Point{{X: 3, Values: []float64{212}}},
				},
				{
					ID: "memory", Title: "Memory", Over: result.OverObjects, Unit: "MiB",
					Points: []result.Point{{X: 1000, Values: []float64{61}}},
				},
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

// A row of a measurement that could not be made is shown all the same.
func TestRowWithoutValues(t *testing.T) {
	require.Contains(t, Markdown(&result.Report{Results: result.Results{Rows: []result.Row{{
		Title: "t", Judge: result.JudgeRatio, Target: result.Target{Bound: result.AtMost, Value: 1},
	}}}}), "| t | – | – | ≤ 1× | – | **no** |")
}

func TestFilesThatCannotBeWritten(t *testing.T) {
	r := sample()
	r.Series[1].Points = nil
	_, err := Files(r)
	require.ErrorContains(t, err, `draw the series "memory"`)

	r = sample()
	r.Rows[0].Values[0] = math.NaN()
	_, err = Files(r)
	require.ErrorContains(t, err, "write the report")
}

func samples() []result.Series {
	balance := result.Series{ID: "balance", Title: "Balance: fullest shard / mean", Over: result.OverShards, Unit: "×"}
	for x := 3.0; x <= 1000; x *= 1.5 {
		balance.Points = append(balance.Points, result.Point{
			X: math.Round(x), Values: []float64{1.05, 1.029, 1.071}, Floor: []float64{1, 1, 1},
		})
	}

	balance.Points[0].Values = []float64{1.01}

	return []result.Series{
		balance,
		{
			ID: "wide", Title: "Network of a service < its floor, with objects that nothing happens to, some minutes after the " +
				"last one was created & assigned",
			Over: result.OverObjects, Unit: "bytes/s", Points: []result.Point{
				{X: 1000, Values: []float64{20}}, {X: 200000, Values: []float64{12345}}, {X: 10000, Values: []float64{300}},
				{X: 5, Values: nil}, {X: 0, Values: []float64{10}},
			},
		},
		{
			ID: "nothing", Title: "Requests per object at rest", Over: result.OverObjects,
			Points: []result.Point{{X: 0, Values: []float64{0}}},
		},
	}
}

// The golden files are pictures: look at them.
func TestPictures(t *testing.T) {
	for _, s := range samples() {
		svg, err := picture(&s)
		require.NoError(t, err)
		golden(t, s.ID+".svg", svg)
	}
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

	for _, c := range []result.Chart{
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
	_, err = drawn(&result.Chart{ID: "c", Lines: []result.Line{through("one", false, math.NaN())}})
	require.EqualError(t, err, `draw the chart "c": 1, NaN cannot be drawn`)
}

func TestWhatCannotBeDrawn(t *testing.T) {
	for want, points := range map[string][]result.Point{
		`draw the series "s": no values`:                         {{X: 3}},
		`draw the series "s": at shards 3, NaN cannot be drawn`:  {{X: 3, Values: []float64{math.NaN()}}},
		`draw the series "s": at shards 3, -1 cannot be drawn`:   {{X: 3, Values: []float64{1}, Floor: []float64{-1}}},
		`draw the series "s": at shards -3, -3 cannot be drawn`:  {{X: -3, Values: []float64{1}}},
		`draw the series "s": at shards 3, +Inf cannot be drawn`: {{X: 3, Values: []float64{math.Inf(1)}}},
	} {
		_, err := picture(&result.Series{ID: "s", Over: result.OverShards, Points: points})
		require.EqualError(t, err, want)
	}
}
