package plot_test

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/load/internal/plot"
	"github.com/clusterring/clusterring/tools/load/internal/result"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// around are three rounds about a value.
func around(v, spread float64) []float64 { return []float64{v, v * (1 - spread), v * (1 + spread)} }

func samples() []result.Series {
	admission := result.Series{ID: "admission", Title: "Assigner CPU per admission", Over: result.OverShards, Unit: "µs"}
	for i, x := range []float64{3, 10, 50, 100, 200, 500, 1000} {
		admission.Points = append(admission.Points, result.Point{X: x, Values: around(212+float64(i)*3, 0.04), Floor: around(190, 0.02)})
	}

	rest := result.Series{
		ID: "rest", Title: "Memory of the rebalancer at rest, with objects that nothing happens to, some minutes after the last one was created & assigned",
		Over: result.OverObjects, Unit: "MiB",
	}
	for _, x := range []float64{0, 1000, 10000, 50000, 200000} {
		rest.Points = append(rest.Points, result.Point{X: x, Values: around(31, 0.1)})
	}

	balance := result.Series{ID: "balance", Title: "Balance: fullest shard / mean", Over: result.OverShards, Unit: "×"}
	for x := 3.0; x <= 1000; x *= 1.5 {
		balance.Points = append(balance.Points, result.Point{X: math.Round(x), Values: around(1.05, 0.02), Floor: []float64{1, 1, 1}})
	}

	balance.Points[0].Values = []float64{1.01}

	return []result.Series{
		admission, rest, balance,
		{ID: "wide", Title: "Network of a service < its floor", Over: result.OverObjects, Unit: "bytes/s", Points: []result.Point{
			{X: 1000, Values: []float64{20}}, {X: 200000, Values: []float64{12345}}, {X: 10000, Values: []float64{300}}, {X: 5, Values: nil},
		}},
		{ID: "one", Title: "One place", Over: result.OverObjects, Unit: "objects/s", Points: []result.Point{{X: 1000, Values: around(940, 0.1), Floor: []float64{1000}}}},
		{ID: "nothing", Title: "Requests per object at rest", Over: result.OverObjects, Points: []result.Point{{X: 0, Values: []float64{0}}}},
	}
}

// The golden files are pictures: look at them.
func TestGolden(t *testing.T) {
	pictures := map[string]string{}

	for _, s := range samples() {
		svg, err := plot.SVG(&s)
		require.NoError(t, err)

		pictures[s.ID] = svg
	}

	lines, err := plot.Timelines("What <happens>", []*result.Timeline{
		{Title: "a & b", Period: 10, Delays: []result.Delay{{At: 5, Took: 1}, {At: 20, Took: 1000}, {At: 0, Took: 0}}, Moves: []float64{2.5, 7.5}},
		{Title: "nothing", Period: 1},
	})
	require.NoError(t, err)

	pictures["timelines"] = lines

	for name, svg := range pictures {
		wellFormed(t, svg)

		golden := filepath.Join("testdata", name+".svg")
		if *update {
			require.NoError(t, os.WriteFile(golden, []byte(svg), 0o644)) //nolint:gosec // a file of the repository
		}

		want, err := os.ReadFile(golden)
		require.NoError(t, err, "go test -update writes it")
		require.Equal(t, string(want), svg, name)
	}
}

func wellFormed(t *testing.T, svg string) {
	t.Helper()

	decoder := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			require.NoError(t, err, svg)
		}
	}
}

func TestOrderOfPointsDoesNotMatter(t *testing.T) {
	s := samples()[0]
	want, err := plot.SVG(&s)
	require.NoError(t, err)
	slices.Reverse(s.Points)
	before := slices.Clone(s.Points)
	got, err := plot.SVG(&s)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, before, s.Points, "the series was changed")
}

func TestWhatCannotBeDrawn(t *testing.T) {
	for want, points := range map[string][]result.Point{
		`draw the series "s": no values`:                         {{X: 3}},
		`draw the series "s": at shards 3, NaN cannot be drawn`:  {{X: 3, Values: []float64{math.NaN()}}},
		`draw the series "s": at shards 3, -1 cannot be drawn`:   {{X: 3, Values: []float64{1}, Floor: []float64{-1}}},
		`draw the series "s": at shards -3, -3 cannot be drawn`:  {{X: -3, Values: []float64{1}}},
		`draw the series "s": at shards 3, +Inf cannot be drawn`: {{X: 3, Values: []float64{math.Inf(1)}}},
	} {
		_, err := plot.SVG(&result.Series{ID: "s", Over: result.OverShards, Points: points})
		require.EqualError(t, err, want)
	}
}

func TestTimelinesThatCannotBeDrawn(t *testing.T) {
	for name, lines := range map[string][]*result.Timeline{
		"none":     nil,
		"a period": {{Period: math.NaN()}},
		"a delay":  {{Period: 1, Delays: []result.Delay{{At: 0, Took: -1}}}},
	} {
		_, err := plot.Timelines("x", lines)
		require.Error(t, err, name)
	}
}
