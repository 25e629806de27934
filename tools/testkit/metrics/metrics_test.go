package metrics_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/testkit/metrics"
)

const text = `# HELP calls_total Calls.
# TYPE calls_total counter
calls_total{ring="a",outcome="assigned"} 12
calls_total{ring="a",outcome="skipped"} 3
calls_total{ring="b",outcome="assigned"} 1e+02
calls_total_more 1000
up 1
`

func TestSum(t *testing.T) {
	for want, of := range map[float64][]string{
		115: {"calls_total"}, 15: {"calls_total", `ring="a"`}, 12: {"calls_total", `outcome="assigned"`, `ring="a"`},
		0: {"calls_total", `ring="c"`}, 1: {"up"},
	} {
		got, err := metrics.Sum(text, of[0], of[1:]...)
		require.NoError(t, err)
		require.InDelta(t, want, got, 0, of)
	}

	_, err := metrics.Sum("up many\n", "up")
	require.ErrorContains(t, err, "read metric up")
}
