// Package metrics reads the metrics that a program serves at /metrics.
package metrics

import (
	"fmt"
	"strconv"
	"strings"
)

// Sum returns the sum over the series of a metric that have all the given labels, each written as name="value". text is
// in the text format of Prometheus. Without any series, the sum is 0. It returns an error if a value is not a number.
func Sum(text, name string, labels ...string) (float64, error) {
	total := 0.0

	for line := range strings.Lines(text) {
		rest, found := strings.CutPrefix(strings.TrimSpace(line), name)
		if !found || rest == "" || rest[0] != '{' && rest[0] != ' ' || !hasAll(rest, labels) {
			continue
		}

		value, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("read metric %s: %w", name, err)
		}

		total += value
	}

	return total, nil
}

func hasAll(series string, labels []string) bool {
	for _, l := range labels {
		if !strings.Contains(series, "{"+l) && !strings.Contains(series, ","+l) {
			return false
		}
	}

	return true
}
