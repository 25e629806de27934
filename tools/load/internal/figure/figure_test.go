package figure_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/load/internal/figure"
)

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 3: "3", 1000: "1,000", 200000: "200,000", 1234567: "1,234,567", 1.0537: "1.05", 12.345: "12.3", 123.45: "123", 1234.5: "1,234",
		0.25: "0.25", 0.0123: "0.012", 0.00001: "1e-05", -1234.5: "-1,234", -0.5: "-0.50", 9.999: "10.0", 99.99: "100", 999.9: "1,000",
		math.Inf(1): "∞",
	} {
		require.Equal(t, want, figure.Number(v))
	}
	require.Equal(t, "–", figure.Number(math.NaN()))
}

func TestExact(t *testing.T) {
	for v, want := range map[float64]string{1.3: "1.3", 128: "128", 0.98: "0.98", 10000: "10,000", 1234.5: "1,234.5"} {
		require.Equal(t, want, figure.Exact(v))
	}
}

func TestWith(t *testing.T) {
	require.Equal(t, "3", figure.With("3", ""))
	require.Equal(t, "1.05×", figure.With("1.05", "×"))
	require.Equal(t, "–", figure.With("–", "µs"))
	require.Equal(t, "10%", figure.With("10", "%"))
	require.Equal(t, "12.3 µs", figure.With("12.3", "µs"))
}
