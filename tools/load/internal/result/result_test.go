package result

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMet(t *testing.T) {
	for name, tc := range map[string]struct {
		row Row
		met bool
	}{
		"at most, below":    {Row{Values: []float64{1}, Target: Target{Bound: AtMost, Value: 2}}, true},
		"at most, equal":    {Row{Values: []float64{2}, Target: Target{Bound: AtMost, Value: 2}}, true},
		"at most, above":    {Row{Values: []float64{3}, Target: Target{Bound: AtMost, Value: 2}}, false},
		"at least, below":   {Row{Values: []float64{1}, Target: Target{Bound: AtLeast, Value: 2}}, false},
		"at least, equal":   {Row{Values: []float64{2}, Target: Target{Bound: AtLeast, Value: 2}}, true},
		"the median counts": {Row{Values: []float64{1, 1, 9}, Target: Target{Bound: AtMost, Value: 2}}, true},
		"the ratio counts": {
			Row{Values: []float64{9}, Floor: []float64{9}, Target: Target{Bound: AtMost, Value: 2}}, true,
		},
		"the value counts, beside a floor": {
			Row{Judge: JudgeValue, Values: []float64{9}, Floor: []float64{9}, Target: Target{Bound: AtMost, Value: 2}}, false,
		},
		"no target": {Row{Values: []float64{1}}, true},
	} {
		require.Equal(t, tc.met, tc.row.Met(), name)
	}
}

func TestCheck(t *testing.T) {
	for want, row := range map[string]Row{
		"":                                      {ID: "r", Values: []float64{1}, Floor: []float64{1}},
		`row "r" has no value`:                  {ID: "r"},
		`has a value that is not finite: [NaN]`: {ID: "r", Values: []float64{math.NaN()}},
		`has 2 values but 1 of its floor`:       {ID: "r", Values: []float64{1, 2}, Floor: []float64{1}},
	} {
		if err := row.Check(); want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 3: "3", 1000: "1,000", 200000: "200,000", 1234567: "1,234,567", 1.0537: "1.05", 12.345: "12.3", 123.45: "123",
		1234.5: "1,234",
		0.25:   "0.25", 0.0123: "0.012", 0.00001: "1e-05", -1234.5: "-1,234", -0.5: "-0.50", 9.999: "10.0", 99.99: "100",
		999.9:       "1,000",
		math.Inf(1): "∞",
	} {
		require.Equal(t, want, Number(v))
	}
	require.Equal(t, []float64{1, math.Inf(1)}, Ratios([]float64{0, 1}, []float64{0, 0}), "a floor of nothing")
}
