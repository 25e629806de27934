package report_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/e2e/report"
)

func TestPrint(t *testing.T) {
	var table report.Table
	table.Add("assigner", report.Figure{Name: "creates", Value: 500})
	table.Add("assigner", report.Figure{Name: "failed", Value: 0, Limit: "none", Kept: true})
	table.Add("assigner", report.Figure{Name: "unassigned", Value: 3 * time.Second, Limit: "at most 2s"})

	var out strings.Builder
	require.NoError(t, table.Print(&out))
	require.Equal(t, ""+
		"   SCENARIO  FIGURE      VALUE  LIMIT\n"+
		"   assigner  creates     500    \n"+
		"   assigner  failed      0      none\n"+
		"!  assigner  unassigned  3s     at most 2s\n"+
		"1 of 3 figures missed their limit:\n"+
		"   SCENARIO  FIGURE      VALUE  LIMIT\n"+
		"!  assigner  unassigned  3s     at most 2s\n", out.String())
}
