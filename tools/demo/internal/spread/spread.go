// Package spread shows how evenly objects are spread over shards, in figures and as bars.
package spread

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// overIdeal is the maximum share of the hash space that the ring gives a shard, relative to its ideal share.
const overIdeal = 1.05

// deviations is the tolerance for random keys, in standard deviations.
const deviations = 3

// Spread is the number of objects of each shard. It contains shards without objects, too.
type Spread map[string]int

// Total returns the number of objects.
func (s Spread) Total() int {
	total := 0
	for _, n := range s {
		total += n
	}

	return total
}

// Mean returns the mean number of objects per shard, and 0 without shards.
func (s Spread) Mean() float64 {
	if len(s) == 0 {
		return 0
	}

	return float64(s.Total()) / float64(len(s))
}

// MaxToMean returns the maximum number of objects per shard, relative to the mean: 1 is perfect. It is 0 without objects.
func (s Spread) MaxToMean() float64 {
	if s.Total() == 0 {
		return 0
	}

	return float64(slices.Max(slices.Collect(maps.Values(s)))) / s.Mean()
}

// Bound returns the maximum MaxToMean that is acceptable for this number of objects: the ring gives each shard at most 1.05 times its ideal
// share of the hash space, and the numbers of random keys deviate from the shares.
func (s Spread) Bound() float64 {
	if s.Total() == 0 {
		return overIdeal
	}

	p := 1 / float64(len(s))

	return overIdeal + deviations*math.Sqrt(float64(s.Total())*p*(1-p))/s.Mean()
}

// String returns the figures in one line.
func (s Spread) String() string {
	return fmt.Sprintf("%d objects over %d shards, max/mean %.2f (bound %.2f)", s.Total(), len(s), s.MaxToMean(), s.Bound())
}

// Bars returns one line per shard, in the order of their names: name, bar of at most width cells, number, and percentage.
func (s Spread) Bars(width int) string {
	most, longest := 1, 0
	for name, n := range s {
		most, longest = max(most, n), max(longest, len(name))
	}

	var out strings.Builder

	for _, name := range slices.Sorted(maps.Keys(s)) {
		bar := bar(float64(s[name])/float64(most), width)
		percent := 100 * float64(s[name]) / float64(max(1, s.Total()))
		fmt.Fprintf(&out, "%-*s  %s  %d (%.1f %%)\n", longest, name, bar, s[name], percent)
	}

	return out.String()
}

// bar draws a fraction of width cells in steps of an eighth of a cell.
func bar(fraction float64, width int) string {
	const eighths = 8

	partial := []string{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"}
	n := int(math.Round(fraction * float64(width*eighths)))
	drawn := strings.Repeat("█", n/eighths) + partial[n%eighths]
	cells := (n + eighths - 1) / eighths

	return drawn + strings.Repeat(" ", width-cells)
}
