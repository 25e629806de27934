package command

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/load/internal/result"
)

// TestReportIntoAPage: the figures of a run become a report beside them, and a part of a page with its plots.
func TestReportIntoAPage(t *testing.T) {
	dir := t.TempDir()
	found := result.Report{
		Scale: "small",
		Results: result.Results{
			Rows:   []result.Row{{ID: "r", Title: "a row", Values: []float64{1}}},
			Charts: []result.Chart{{ID: "c", Lines: []result.Line{{Points: []result.XY{{X: 3, Y: 1}}}}}},
		},
	}

	data, err := json.Marshal(found)
	require.NoError(t, err)

	file, page := filepath.Join(dir, "report.json"), filepath.Join(dir, "docs", "performance.md")
	require.NoError(t, os.WriteFile(file, data, 0o600))
	require.NoError(t, os.Mkdir(filepath.Dir(page), 0o700))
	require.NoError(t, os.WriteFile(page, []byte("<!-- results -->\n<!-- end of results -->\n<!-- plots -->\n<!-- end "+
		"of plots -->\nthe rest\n"), 0o600))

	var out bytes.Buffer

	c := New()
	c.SetOut(&out)
	c.SetArgs([]string{"report", file, "--page", page})
	require.NoError(t, c.ExecuteContext(t.Context()))

	require.Contains(t, out.String(), "a row")
	require.FileExists(t, filepath.Join(dir, "report.md"))
	require.FileExists(t, filepath.Join(dir, "c.svg"))
	require.FileExists(t, filepath.Join(dir, "docs", "performance", "c.svg"))

	content, err := os.ReadFile(page) //nolint:gosec // a file of the test
	require.NoError(t, err)
	require.Contains(t, string(content), "| a row |")
	require.Contains(t, string(content), "](performance/c.svg)")
	require.Contains(t, string(content), "the rest")

	c.SetArgs([]string{"report", file, "--page", file})
	require.ErrorContains(t, c.ExecuteContext(t.Context()), "the page must have one line")
}
