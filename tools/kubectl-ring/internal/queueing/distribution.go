package queueing

import (
	"cmp"
	"math"
	"slices"
)

// Piece is a part of a distribution: a weight that is spread evenly over an interval of values.
type Piece struct {
	// From and To bound the values, with 0 <= From <= To. To may be infinite.
	From, To float64
	// Weight is relative to the weights of the other pieces. Pieces whose weight is not positive are ignored.
	Weight float64
}

// Distribution is a distribution of values that are not negative, such as durations in seconds. The zero value is the distribution
// whose only value is 0. A distribution is immutable.
type Distribution struct {
	pieces []Piece // in order of From, with the sum 1 of all weights
}

// NewDistribution returns the distribution of a histogram. pieces are its buckets, which do not overlap, in any order. mean is the exact
// mean of the values, which histograms keep as a sum and a count.
//
// A bucket only says how many values it holds. Within each bucket, the values are spread evenly over the part next to its lower or its
// upper bound that gives the distribution the mean. Thereby errors of wide buckets do not add up in the moments.
func NewDistribution(pieces []Piece, mean float64) Distribution {
	pieces = slices.DeleteFunc(slices.Clone(pieces), func(p Piece) bool { return !(p.Weight > 0) })
	if len(pieces) == 0 {
		return Distribution{}
	}

	slices.SortStableFunc(pieces, func(a, b Piece) int { return cmp.Compare(a.From, b.From) })
	normalize(pieces)

	pieces = bounded(pieces, mean)

	low, width := 0.0, 0.0
	for _, p := range pieces {
		low += p.Weight * p.From
		width += p.Weight * (p.To - p.From)
	}

	share := 0.5 // of the way from the lower bound to the upper one: the mean of each piece
	if width > 0 {
		share = min(max((mean-low)/width, 0), 1)
	}

	for i, p := range pieces {
		if share < 0.5 {
			pieces[i].To = p.From + 2*share*(p.To-p.From)
		} else {
			pieces[i].From = p.To - 2*(1-share)*(p.To-p.From)
		}
	}

	return Distribution{pieces}
}

// normalize makes the sum of the weights 1.
func normalize(pieces []Piece) {
	total := 0.0
	for _, p := range pieces {
		total += p.Weight
	}

	for i := range pieces {
		pieces[i].Weight /= total
	}
}

// bounded joins the pieces that have no end to one, and gives it an end. The end is such that the mean is right if the mean of each piece is its
// middle.
func bounded(pieces []Piece, mean float64) []Piece {
	var finite []Piece

	open, rest := Piece{From: math.Inf(1)}, mean

	for _, p := range pieces {
		if math.IsInf(p.To, 1) {
			open.From, open.Weight = min(open.From, p.From), open.Weight+p.Weight
			continue
		}

		finite = append(finite, p)
		rest -= p.Weight * (p.From + p.To) / 2
	}

	if open.Weight == 0 {
		return finite
	}

	rest -= open.Weight * open.From
	open.To = open.From + 2*max(rest, 0)/open.Weight

	return append(finite, open)
}

// list returns the pieces, of which there is at least one.
func (d Distribution) list() []Piece {
	if len(d.pieces) == 0 {
		return []Piece{{Weight: 1}}
	}

	return d.pieces
}

// Mean returns the mean.
func (d Distribution) Mean() float64 {
	return d.sum(func(a, b float64) float64 { return (a + b) / 2 })
}

// Variation returns the squared coefficient of variation, the variance divided by the square of the mean: 0 if all values are equal, 1 for
// an exponential distribution. It is 0 if the mean is 0.
func (d Distribution) Variation() float64 {
	mean := d.Mean()
	if mean == 0 {
		return 0
	}

	return max(d.sum(func(a, b float64) float64 { return (a*a + a*b + b*b) / 3 })/(mean*mean)-1, 0)
}

// skew returns the third moment divided by the third power of the mean. It is 1 if the mean is 0.
func (d Distribution) skew() float64 {
	mean := d.Mean()
	if mean == 0 {
		return 1
	}

	return d.sum(func(a, b float64) float64 { return (a + b) * (a*a + b*b) / 4 }) / (mean * mean * mean)
}

// sum returns the sum over the pieces of a moment of the uniform distribution from a to b.
func (d Distribution) sum(moment func(a, b float64) float64) float64 {
	sum := 0.0
	for _, p := range d.list() {
		sum += p.Weight * moment(p.From, p.To)
	}

	return sum
}

// Tail returns the probability of a value above x.
func (d Distribution) Tail(x float64) float64 {
	tail := 0.0

	for _, p := range d.list() {
		switch {
		case x < p.From:
			tail += p.Weight
		case x < p.To:
			tail += p.Weight * (p.To - x) / (p.To - p.From)
		}
	}

	return tail
}

// Quantile returns the least value that is not exceeded with probability p, from 0 to 1.
func (d Distribution) Quantile(p float64) float64 { return quantile(p, d.Tail, d.most()) }

// most returns a value that is not exceeded.
func (d Distribution) most() float64 {
	most := 0.0
	for _, p := range d.list() {
		most = max(most, p.To)
	}

	return most
}

// QuantileOfSum returns the least value that the sum of two independent values exceeds with a probability of at most 1-p.
func QuantileOfSum(a, b Distribution, p float64) float64 {
	return quantile(p, func(x float64) float64 { return a.plus(b, x) }, a.most()+b.most())
}

// tailed is a distribution of values that are not negative.
type tailed interface {
	// Tail returns the probability of a value above x.
	Tail(x float64) float64
	// area returns the integral of Tail from 0 to x, which is not negative.
	area(x float64) float64
}

// area implements tailed.
func (d Distribution) area(x float64) float64 {
	area := 0.0

	for _, p := range d.list() {
		switch {
		case x <= p.From:
			area += p.Weight * x
		case x < p.To:
			area += p.Weight * (x - (x-p.From)*(x-p.From)/(2*(p.To-p.From)))
		default:
			area += p.Weight * (p.From + p.To) / 2
		}
	}

	return area
}

// plus returns the probability that the sum of a value and an independent other one is above x. It is the mean of the other's tail at x minus
// the value, by integrals over the pieces.
func (d Distribution) plus(other tailed, x float64) float64 {
	sum := 0.0

	for _, p := range d.list() {
		if p.To-p.From <= 0 {
			sum += p.Weight * other.Tail(x-p.From)
			continue
		}

		above := max(p.To-max(p.From, x), 0) // where the value alone is above x
		below := other.area(max(x-p.From, 0)) - other.area(max(x-p.To, 0))
		sum += p.Weight * (above + below) / (p.To - p.From)
	}

	return sum
}

// quantile returns the least x for which tail(x) is at most 1-p. tail does not increase. most is a guess of a value that is large enough.
func quantile(p float64, tail func(float64) float64, most float64) float64 {
	const (
		rounds = 50
		slack  = 1e-12 // of sums of floating-point numbers
	)

	allowed := 1 - p + slack

	high := most
	for range 2 * rounds {
		if tail(high) <= allowed {
			break
		}

		high = 2*high + math.SmallestNonzeroFloat32
	}

	low := 0.0
	if tail(low) <= allowed {
		return low
	}

	for range rounds {
		if middle := low + (high-low)/2; tail(middle) <= allowed {
			high = middle
		} else {
			low = middle
		}
	}

	return high
}
