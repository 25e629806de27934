// Package spread tells how evenly objects are spread over shards, in figures and as a picture.
package spread

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// overIdeal is the most that the ring itself lets a shard exceed its ideal share of the hash space.
const overIdeal = 1.05

// deviations is how many standard deviations of keys thrown at random a shard may lie above that.
const deviations = 3

// Spread is how many objects each shard has; shards without objects count if they are there with 0.
type Spread map[string]int

// Total returns the number of objects.
func (s Spread) Total() int {
	total := 0
	for _, n := range s {
		total += n
	}

	return total
}

// Mean returns the number of objects per shard, and 0 where there is no shard.
func (s Spread) Mean() float64 {
	if len(s) == 0 {
		return 0
	}

	return float64(s.Total()) / float64(len(s))
}

// MaxToMean returns how far the fullest shard is above the mean: 1 is perfect. Without objects it is 0.
func (s Spread) MaxToMean() float64 {
	if s.Total() == 0 {
		return 0
	}

	return float64(slices.Max(slices.Collect(maps.Values(s)))) / s.Mean()
}

// Bound returns the greatest MaxToMean that so few objects allow to ask for: the ring gives each shard at most 1.05 times
// its ideal share of the hash space, and n keys thrown into it at random deviate from the shares by chance.
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

// Bars returns one line per shard, in the order of their names: name, a bar of at most width cells, number and percentage.
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
