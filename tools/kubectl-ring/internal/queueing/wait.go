package queueing

import "math"

// maxStages bounds the stages of a wait, and thereby how little it varies.
const maxStages = 20

// wait is a distribution with a given mean and variation: with probability first it has the rate and stages of the first branch, else those
// of the second one.
type wait struct {
	first              float64
	rate, otherRate    float64
	stages, moreStages int
}

// newWait returns a distribution with a mean above 0, and a squared coefficient of variation, of at least 1/maxStages.
func newWait(mean, variation float64) wait {
	if variation >= 1 { // hyperexponential with balanced means
		first := (1 + math.Sqrt((variation-1)/(variation+1))) / 2
		return wait{first: first, rate: 2 * first / mean, otherRate: 2 * (1 - first) / mean, stages: 1, moreStages: 1}
	}

	variation = max(variation, 1.0/maxStages)
	stages := math.Ceil(1 / variation)
	fewer := (stages*variation - math.Sqrt(max(stages*(1+variation)-stages*stages*variation, 0))) / (1 + variation)
	rate := (stages - fewer) / mean

	return wait{first: fewer, rate: rate, otherRate: rate, stages: int(stages) - 1, moreStages: int(stages)}
}

// Tail implements tailed.
func (w wait) Tail(x float64) float64 {
	if x < 0 {
		return 1
	}

	return w.first*erlangTail(w.stages, w.rate*x) + (1-w.first)*erlangTail(w.moreStages, w.otherRate*x)
}

// area implements tailed.
func (w wait) area(x float64) float64 {
	return w.first*erlangArea(w.stages, w.rate, x) + (1-w.first)*erlangArea(w.moreStages, w.otherRate, x)
}

// erlangArea returns the integral from 0 to x of the tail of a sum of exponential stages with a rate.
func erlangArea(stages int, rate, x float64) float64 {
	area := 0.0
	for i := range stages {
		area += (1 - erlangTail(i+1, rate*x)) / rate
	}

	return area
}

// erlangTail returns the probability that a sum of exponential stages, each with the mean 1, is above x.
func erlangTail(stages int, x float64) float64 {
	sum, term := 0.0, math.Exp(-x)
	for i := range stages {
		sum += term
		term *= x / float64(i+1)
	}

	return sum
}
