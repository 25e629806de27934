package plot

import (
	"math"
	"slices"

	"github.com/clusterring/clusterring/tools/load/internal/figure"
)

// axis maps what is measured to places in the picture. A logarithmic one has room for zero before its first decade.
type axis struct {
	from, to     float64 // pixels
	lowest, most float64 // values at both ends; of a logarithmic axis the lowest is above zero
	log          bool
	zero         bool // a logarithmic axis that shows zero
	ticks        []tick
}

type tick struct {
	value float64
	label string
}

const (
	// roomForZero is the part of a logarithmic axis that stands for what is between zero and the first value.
	roomForZero = 0.12
	// margin is what is left free at either end of the horizontal axis.
	margin = 0.03
	// wide is the ratio of the highest to the lowest value from which on the vertical axis is logarithmic.
	wide = 50
	// intervals is about how many parts the ticks cut an axis into.
	intervals = 5
)

// at returns where a value is.
func (a *axis) at(v float64) float64 {
	if !a.log {
		return a.from + (a.to-a.from)*(v-a.lowest)/(a.most-a.lowest)
	}

	start := 0.0
	if a.zero {
		start = roomForZero
	}

	if v < a.lowest {
		return a.from
	}

	part := 0.5
	if a.most > a.lowest {
		part = math.Log(v/a.lowest) / math.Log(a.most/a.lowest)
	}

	return a.from + (a.to-a.from)*(start+(1-start)*part)
}

// horizontal is logarithmic, because what a cost grows with does so by factors. Its ticks are where something was measured, as
// far as there is room.
func horizontal(points []point) axis {
	room := margin * float64(right-left)

	a := axis{from: left + room, to: right - room, log: true, most: points[len(points)-1].x, zero: points[0].x == 0}
	for _, p := range points {
		if p.x > 0 {
			a.lowest = p.x
			break
		}
	}

	if a.most == 0 {
		a.lowest, a.most = 1, 1 // only zero
	}

	end := math.Inf(1)
	// From the right, since the largest has the most to say.
	for _, p := range slices.Backward(points) {
		label := figure.Number(p.x)
		half := float64(len(label)) * widthOfDigit / 2

		x := a.at(p.x)
		if x+half+leastBetweenTicks > end || (p.x != points[0].x && x-half-leastBetweenTicks < a.at(points[0].x)+firstHalf(points)) {
			continue
		}

		a.ticks = append(a.ticks, tick{p.x, label})
		end = x - half
	}
	slices.Reverse(a.ticks)

	return a
}

func firstHalf(points []point) float64 {
	return float64(len(figure.Number(points[0].x))) * widthOfDigit / 2
}

// vertical begins at zero, so that heights can be compared; at 1 for ratios above it, of which 1 is the ideal. Only what
// differs by large factors is drawn logarithmically.
func vertical(points []point, unit string, top float64) axis {
	lowest, most := math.Inf(1), 0.0
	for _, p := range points {
		lowest, most = min(lowest, p.low), max(most, p.high)
		if !math.IsNaN(p.floor) {
			lowest, most = min(lowest, p.floor), max(most, p.floor)
		}
	}

	a := axis{from: bottom, to: top}

	switch {
	case lowest > 0 && most/lowest >= wide:
		a.log = true
		a.decades(lowest, most)
	case unit == ratio && lowest >= 1:
		a.linear(1, max(most, 1.1))
	case most == 0:
		a.linear(0, 1)
	default:
		a.linear(0, most)
	}

	return a
}

// ratio is the unit of ratios.
const ratio = "×"

// linear sets the ends and the ticks, at 1, 2, 2.5 or 5 times a power of ten.
func (a *axis) linear(lowest, most float64) {
	rough := (most - lowest) / intervals
	power := math.Pow(10, math.Floor(math.Log10(rough)))

	step := 10 * power
	for _, nice := range []float64{1, 2, 2.5, 5} {
		if nice*power >= rough*(1-1e-9) {
			step = nice * power
			break
		}
	}

	n := int(math.Ceil((most-lowest)/step - 1e-9))
	a.lowest, a.most = lowest, lowest+float64(n)*step

	digits := 0
	for scaled := step; math.Abs(scaled-math.Round(scaled)) > 1e-6*scaled; scaled *= 10 {
		digits++
	}

	for i := range n + 1 {
		a.ticks = append(a.ticks, tick{lowest + float64(i)*step, figure.Fixed(lowest+float64(i)*step, digits)})
	}

	if lowest == 0 {
		a.ticks[0].label = "0"
	}
}

// decades sets the ends and the ticks of a logarithmic axis: at powers of ten.
func (a *axis) decades(lowest, most float64) {
	first, last := math.Floor(math.Log10(lowest)+1e-9), math.Ceil(math.Log10(most)-1e-9)

	a.lowest, a.most = math.Pow(10, first), math.Pow(10, last)
	for e := first; e <= last; e++ {
		a.ticks = append(a.ticks, tick{math.Pow(10, e), figure.Number(math.Pow(10, e))})
	}
}
