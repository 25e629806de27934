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
	for name, test := range map[string]struct {
		metric string
		labels []string
		want   float64
	}{
		"all":          {"calls_total", nil, 115},
		"one ring":     {"calls_total", []string{`ring="a"`}, 15},
		"two labels":   {"calls_total", []string{`outcome="assigned"`, `ring="a"`}, 12},
		"no such ring": {"calls_total", []string{`ring="c"`}, 0},
		"no labels":    {"up", nil, 1},
	} {
		got, err := metrics.Sum(text, test.metric, test.labels...)
		require.NoError(t, err)
		require.InDelta(t, test.want, got, 0, name)
	}

	_, err := metrics.Sum("up many\n", "up")
	require.ErrorContains(t, err, "read metric up")
}
