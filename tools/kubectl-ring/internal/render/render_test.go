package render_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/render"
)

func TestBar(t *testing.T) {
	for _, c := range []struct {
		fraction float64
		want     string
	}{
		{0, ""}, {0.0001, "▏"}, {0.125, "▌"}, {0.25, "█"}, {0.5, "██"}, {1, "████"}, {2, "████"}, {-1, ""},
	} {
		require.Equal(t, c.want, render.Bar(c.fraction, 4), c.fraction)
	}
}

// TestTableGrows verifies that rows are aligned with the rows of earlier flushes, as far as they fit.
func TestTableGrows(t *testing.T) {
	var out strings.Builder

	table := &render.Table{W: &out}
	table.Header("A", "B")
	table.Reserve(0, "reserved")
	table.Row("x", render.Good.In("y"))
	require.NoError(t, table.Flush())
	table.Row("lang genug, um größer zu werden", "")
	table.Row("ä\x1b[31m\n", 7)
	require.NoError(t, table.Flush())
	require.Equal(t, ""+
		"A          B\n"+
		"x          y\n"+
		"lang genug, um größer zu werden   -\n"+
		"ä?[31m                            7\n", out.String())
	require.NoError(t, table.Flush(), "nothing is added")
	require.Equal(t, 4, strings.Count(out.String(), "\n"))
}
