// Package queueing predicts how long work waits for one of several workers, and until it is done.
//
// A [Queue] is the model M/G/c with bursts: work arrives at random, a worker needs a time of any distribution for each piece, and c workers
// take the work in the order of its arrival. Its parts:
//
//   - The probability of waiting is Erlang's C formula (A. K. Erlang, 1917), as if the times were exponential.
//   - The mean wait is the approximation of Allen and Cunneen, that of M/M/c times (1+v)/2, where v is the squared coefficient of variation
//     of the times (A. O. Allen, Probability, Statistics, and Queueing Theory, 2nd ed. 1990, section 5.3.5). It is exact for one
//     worker (the formula of Pollaczek and Khinchine) and for exponential times.
//   - The distribution of the wait of those that wait has the variation that W. Whitt gives (Approximations for the GI/G/m queue,
//     Production and Operations Management 2, 1993, section 4), which is exact for one worker. It is a mixture of Erlang distributions, or a
//     hyperexponential distribution, with this mean and variation (H. C. Tijms, A First Course in Stochastic Models, 2003, appendix B).
//   - Waiting and working are independent, as they are when work is taken in order, so the time until the work is done is their sum.
//   - Bursts: if b others arrive at the same moment as a piece of work, on average, it waits for half of them (the formula for batches at
//     one worker, M. L. Chaudhry and J. G. C. Templeton, A First Course in Bulk Queues, 1983). The workers share a burst.
//
// The tests compare the model with simulated queues, and state how far it is off.
//
// # Rejected alternatives
//
// An exponential distribution of the wait, the usual companion of Allen and Cunneen, is far off where times vary much and workers are not
// busy, which is the usual state of a controller. A simulation instead of formulas is as good, but its answer is noisy, and nobody can check it by
// hand.
package queueing

import "math"

// Queue is work that waits for workers. The zero value is a queue without work.
type Queue struct {
	// Rate is how much work arrives, per second.
	Rate float64
	// Workers is the number of workers. It is at least 1.
	Workers int
	// Work is how long a worker needs for one piece of work, in seconds.
	Work Distribution
	// Burst is how many others arrive together with a piece of work, on average over the pieces. 0: each arrives at a random moment.
	Burst float64
}

// Busy returns the share of the workers that are busy. It is 1 or more if work arrives faster than it is done.
func (q Queue) Busy() float64 { return q.Rate * q.Work.Mean() / float64(q.Workers) }

// MeanWait returns the mean time that work waits for a worker, in seconds. It is infinite if work arrives faster than it is done.
func (q Queue) MeanWait() float64 { return q.alone() + q.together() }

// alone is the mean wait if there are no bursts.
func (q Queue) alone() float64 {
	busy := q.Busy()
	if busy >= 1 {
		return math.Inf(1)
	}

	return ErlangC(q.Workers, busy) * q.turn() / (1 - busy) * (1 + q.Work.Variation()) / 2
}

// together is the mean wait for others of the same burst.
func (q Queue) together() float64 {
	busy := q.Busy()
	if busy >= 1 {
		return math.Inf(1)
	}

	return q.Burst / 2 * q.turn() / (1 - busy)
}

// turn is the mean time from one start to the next one while all workers are busy.
func (q Queue) turn() float64 { return q.Work.Mean() / float64(q.Workers) }

// WithWait returns the queue with the bursts that make its mean wait at least the given one, in seconds. If the wait is shorter than that of
// a queue without bursts, the queue has none.
func (q Queue) WithWait(wait float64) Queue {
	q.Burst = 0
	if excess := wait - q.alone(); excess > 0 {
		q.Burst = 2 * excess * (1 - q.Busy()) / q.turn()
	}

	return q
}

// Quantile returns the time from the arrival of work until it is done that is not exceeded with probability p, in seconds. It is infinite if
// work arrives faster than it is done.
func (q Queue) Quantile(p float64) float64 {
	busy := q.Busy()
	if busy >= 1 {
		return math.Inf(1)
	}

	mean := q.MeanWait()
	if mean == 0 {
		return q.Work.Quantile(p)
	}

	ahead := q.Burst / 2 // geometric: the chance that there is any
	waits := max(ErlangC(q.Workers, busy), ahead/(1+ahead))
	wait := newWait(mean/waits, q.waitVariation())
	tail := func(x float64) float64 {
		return (1-waits)*q.Work.Tail(x) + waits*q.Work.plus(wait, x)
	}

	return quantile(p, tail, q.Work.most()+mean/waits)
}

// waitVariation returns the squared coefficient of variation of the wait of those that wait.
func (q Queue) waitVariation() float64 {
	busy, v := q.Busy(), q.Work.Variation()

	variation := 2*busy - 1 + 4*(1-busy)*q.Work.skew()/(3*(1+v)*(1+v))
	if q.Burst > 0 {
		variation = max(variation, 1)
	}

	return variation
}

// ErlangC returns the probability that work waits in a queue with exponential times (Erlang's C formula). busy is the share of the workers that
// are busy. The probability is 1 if busy is 1 or more.
func ErlangC(workers int, busy float64) float64 {
	if busy >= 1 {
		return 1
	}

	load := busy * float64(workers)

	blocked := 1.0 // Erlang's B formula, by its recursion
	for i := 1; i <= workers; i++ {
		blocked = load * blocked / (float64(i) + load*blocked)
	}

	return blocked / (1 - busy*(1-blocked))
}
