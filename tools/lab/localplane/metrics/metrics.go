// Package metrics reads what a program serves at /metrics.
package metrics

import (
	"fmt"
	"strconv"
	"strings"
)

// Sum returns the sum over the series of a metric, in the text format of Prometheus, that have all the given labels, each written as
// name="value". Without any series it is 0. An error names the metric whose value is no number.
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
