package report_test

import (
	"bytes"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/load/internal/report"
	"github.com/clusterring/clusterring/tools/load/internal/result"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func sample() *result.Report {
	cpu := "CPU is of the process, user and system."

	return &result.Report{
		Began: time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC), Took: 18*60 + 12.345, Scale: "full", Version: "v1.2.3",
		Machine: result.Machine{CPU: "a processor", Cores: 2, MemoryBytes: 8 << 30, OS: "Linux 6.1"},
		Rows: []result.Row{
			{
				ID: "admission-3", Title: "assigner CPU per admission, 3 shards", Unit: "µs", Values: []float64{212, 230, 220}, FloorTitle: "no-op webhook",
				Floor: []float64{190, 191, 192}, Judge: result.JudgeRatio, Target: result.Target{Bound: result.AtMost, Value: 1.3, Unit: "×"},
				PriorArt: "1.9× / 2.2×", Notes: []string{cpu},
			},
			{
				ID: "just-not", Title: "just | not", Unit: "µs", Values: []float64{130.04}, Floor: []float64{100}, Judge: result.JudgeRatio,
				Target: result.Target{Bound: result.AtMost, Value: 1.3}, Notes: []string{"One round.", cpu},
			},
			{
				ID: "memory", Title: "rebalancer memory", Unit: "MiB", Values: []float64{64.25, 61, 70}, Judge: result.JudgeValue,
				Target: result.Target{Bound: result.AtMost, Value: 128},
			},
			{
				ID: "moves", Title: "objects moved per second", Unit: "objects/s", Values: []float64{1234, 1300}, FloorTitle: "raw PATCH", Floor: []float64{1500, 1510},
				Judge: result.JudgeRatio, Target: result.Target{Bound: result.AtLeast, Value: 0.85},
			},
			{ID: "calls", Title: "calls for others", Values: []float64{0, 0}, Judge: result.JudgeValue, Target: result.Target{Bound: result.AtMost, Value: 0}},
			{ID: "told", Title: "only told", Unit: "s", Values: []float64{0.04}, FloorTitle: "the same at 0", Judge: result.JudgeValue},
		},
		Series: []result.Series{
			{ID: "admission", Title: "CPU per admission [all]", Over: result.OverShards, Unit: "µs", Points: []result.Point{{X: 3, Values: []float64{212}}}},
			{ID: "memory", Title: "Memory", Over: result.OverObjects, Unit: "MiB", Points: []result.Point{{X: 1000, Values: []float64{61}}}},
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

func TestMarkdown(t *testing.T) { golden(t, "report.md", report.Markdown(sample())) }

func TestPrint(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, report.Print(&out, sample()))
	golden(t, "table.txt", out.String())
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestPrintSaysWhatFailed(t *testing.T) {
	require.EqualError(t, report.Print(broken{}, sample()), "print the table of results: disk full")
}

// A row of a measurement that could not be made is printed all the same.
func TestRowWithoutValues(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, report.Print(&out, &result.Report{Rows: []result.Row{{Title: "t", Judge: result.JudgeRatio, Target: result.Target{Bound: result.AtMost, Value: 1}}}}))
	require.Contains(t, out.String(), "!  t            –       –")
	require.NotContains(t, out.String(), "NaN")
}

func TestFiles(t *testing.T) {
	r := sample()
	files, err := report.Files(r)
	require.NoError(t, err)
	require.Len(t, files, 4)
	require.Equal(t, report.Markdown(r), string(files[report.Page]))
	require.Contains(t, string(files["admission.svg"]), "CPU per admission [all]</title>")
	require.Contains(t, files, "memory.svg")
	read, err := result.Read(bytes.NewReader(files[report.Data]))
	require.NoError(t, err)
	require.Equal(t, r, read)

	r.Series[1].Points = nil
	_, err = report.Files(r)
	require.ErrorContains(t, err, `draw the series "memory"`)

	r = sample()
	r.Rows[0].Values[0] = math.NaN()
	_, err = report.Files(r)
	require.ErrorContains(t, err, "write the report")
}

func TestSplice(t *testing.T) {
	page := "# Speed\n\n<!-- results -->\nold\n<!-- end of results -->\n\nbetween\n\n<!-- plots -->\n<!-- end of plots -->\nafter\n"
	spliced, err := report.Splice(page, sample(), "performance")
	require.NoError(t, err)
	golden(t, "page.md", spliced)

	again, err := report.Splice(spliced, sample(), "performance/")
	require.NoError(t, err)
	require.Equal(t, spliced, again, "the same report changes nothing")
}

func TestSpliceNeedsItsMarkers(t *testing.T) {
	for _, page := range []string{
		"",
		"<!-- results -->\n<!-- end of results -->\n",
		"<!-- results -->\n<!-- plots -->\n<!-- end of plots -->\n",
		"<!-- end of results -->\n<!-- results -->\n<!-- plots -->\n<!-- end of plots -->\n",
		"<!-- results -->\n<!-- end of results -->\n<!-- results -->\n<!-- end of results -->\n<!-- plots -->\n<!-- end of plots -->\n",
	} {
		_, err := report.Splice(page, sample(), "")
		require.ErrorContains(t, err, "the page must have one line")
	}
}
