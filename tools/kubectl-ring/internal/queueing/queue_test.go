package queueing_test

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/queueing"
)

// ends are the times at which workers become free, as a heap.
type ends []float64

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i] < e[j] }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e ends) Push(any)           {} // its length is constant
func (e ends) Pop() any           { return nil }

// scenario is a queue to simulate. The mean of the work is 1.
type scenario struct {
	work    string
	workers int
	busy    float64
	burst   int // how many arrive at a moment
	shards  int // which share each burst at random; one of them is simulated
}

// simulate returns the mean wait, and the 99th percentile of the time until work is done, of an event-by-event simulation.
func simulate(s scenario) (wait, p99 float64) {
	const pieces = 120_000

	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a simulation that is the same every time
	free := make(ends, s.workers)
	now, times := 0.0, make([]float64, 0, pieces)

	for len(times) < pieces {
		now += random.ExpFloat64() / (s.busy * float64(s.workers)) * float64(s.burst) / float64(s.shards)

		for range s.burst {
			if random.IntN(s.shards) > 0 {
				continue
			}

			start := max(now, free[0])
			free[0] = start + works[s.work](random)
			wait += start - now
			times = append(times, free[0]-now)
			heap.Fix(free, 0)
		}
	}
	slices.Sort(times)

	return wait / float64(len(times)), times[len(times)*99/100]
}

// works draw the times of work, with the mean 1.
var works = map[string]func(*rand.Rand) float64{
	"constant":    func(*rand.Rand) float64 { return 1 },
	"exponential": func(r *rand.Rand) float64 { return r.ExpFloat64() },
	"lognormal":   func(r *rand.Rand) float64 { return math.Exp(r.NormFloat64() - 0.5) }, // variation 1.7
	"two kinds": func(r *rand.Rand) float64 { // 5 % take ten times as long as the others: variation 1.8
		if r.Float64() < 0.95 {
			return 1 / 1.45
		}

		return 10 / 1.45
	},
	"four times as varied as exponential": func(r *rand.Rand) float64 {
		first := (1 + math.Sqrt(3.0/5)) / 2
		if r.Float64() < first {
			return r.ExpFloat64() / (2 * first)
		}

		return r.ExpFloat64() / (2 * (1 - first))
	},
}

// histogram returns the distribution of work as a native histogram has it: buckets that are 9 % wide, and the mean.
func histogram(work string) queueing.Distribution {
	const (
		pieces = 100_000
		parts  = 8 // of a doubling
	)

	random := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // a simulation that is the same every time
	counts, sum := map[int]float64{}, 0.0

	for range pieces {
		x := works[work](random)
		sum += x
		counts[int(math.Ceil(parts*math.Log2(x)))]++
	}

	var buckets []queueing.Piece
	for i, n := range counts {
		buckets = append(buckets, queueing.Piece{From: math.Exp2(float64(i-1) / parts), To: math.Exp2(float64(i) / parts), Weight: n})
	}

	return queueing.NewDistribution(buckets, sum/pieces)
}

// TestPredictionsOfRandomArrivals compares the model with simulations. docs/when-to-shard.md states the bands.
func TestPredictionsOfRandomArrivals(t *testing.T) {
	for work := range works {
		t.Run(work, func(t *testing.T) {
			d := histogram(work)

			for _, workers := range []int{1, 2, 4, 16} {
				for _, busy := range []float64{0.1, 0.3, 0.5, 0.7, 0.9} {
					s := scenario{work: work, workers: workers, busy: busy, burst: 1, shards: 1}
					wait, p99 := simulate(s)
					q := queueing.Queue{Rate: busy * float64(workers), Workers: workers, Work: d}
					require.InDelta(t, 1, q.Quantile(0.99)/p99, 0.2, "%+v: 99th percentile %v", s, p99)

					if wait > 0.1 {
						require.InDelta(t, 1, q.MeanWait()/wait, 0.3, "%+v: mean wait %v", s, wait)
					}
				}
			}
		})
	}
}

// TestPredictionsOfBursts calibrates the model with the mean wait of one queue, as advise does, and predicts that of more shards, of which each
// gets its part of each burst. The model expects bursts of varied size; these all have the same, so it expects too much rather than too little.
func TestPredictionsOfBursts(t *testing.T) {
	for _, work := range []string{"constant", "lognormal", "two kinds"} {
		t.Run(work, func(t *testing.T) {
			d := histogram(work)

			for _, workers := range []int{1, 4, 10} {
				for _, busy := range []float64{0.1, 0.5, 0.8} {
					s := scenario{work: work, workers: workers, busy: busy, burst: 10, shards: 1}
					wait, p99 := simulate(s)
					q := queueing.Queue{Rate: busy * float64(workers), Workers: workers, Work: d}.WithWait(wait)
					require.InEpsilon(t, wait, q.MeanWait(), 0.05, "%+v", s)

					ratio := q.Quantile(0.99) / p99
					require.Greater(t, ratio, 0.75, "%+v: 99th percentile %v", s, p99)
					require.Less(t, ratio, 2.3, "%+v: 99th percentile %v", s, p99)

					s.shards, s.busy = 4, busy/4
					_, p99 = simulate(s)
					q.Rate /= 4
					q.Burst /= 4
					ratio = q.Quantile(0.99) / p99
					require.Greater(t, ratio, 0.75, "%+v: 99th percentile %v", s, p99)
					require.Less(t, ratio, 2.3, "%+v: 99th percentile %v", s, p99)
				}
			}
		})
	}
}

// TestKnownQueues compares the model with exact results.
func TestKnownQueues(t *testing.T) {
	// M/M/c, from tables of Erlang's C formula.
	for _, c := range []struct {
		workers int
		busy    float64
		want    float64
	}{{1, 0.5, 0.5}, {2, 0.5, 1.0 / 3}, {10, 0.8, 0.4092}, {5, 0, 0}, {3, 1, 1}, {3, 2, 1}} {
		require.InDelta(t, c.want, queueing.ErlangC(c.workers, c.busy), 1e-4, "%+v", c)
	}

	// M/D/1: half the wait of M/M/1.
	constant := queueing.NewDistribution([]queueing.Piece{{From: 2, To: 2, Weight: 7}}, 2)
	q := queueing.Queue{Rate: 0.25, Workers: 1, Work: constant}
	require.InDelta(t, 0.5, q.Busy(), 1e-9)
	require.InDelta(t, 1, q.MeanWait(), 1e-9)

	// Without other work, time is that of the work.
	q.Rate = 0
	require.InDelta(t, 2, q.Quantile(0.99), 1e-6)

	// More work than can be done.
	q.Rate = 0.5
	require.True(t, math.IsInf(q.MeanWait(), 1))
	require.True(t, math.IsInf(q.Quantile(0.99), 1))
	require.Zero(t, queueing.Queue{Workers: 1}.Quantile(0.99), "no work")
}

// TestMoreIsNeverWorse verifies what the search for a plan relies on.
func TestMoreIsNeverWorse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := anyDistribution(t)
		workers := rapid.IntRange(1, 50).Draw(t, "workers")
		busy := rapid.Float64Range(0.01, 0.79).Draw(t, "busy")
		q := queueing.Queue{
			Rate: busy * float64(workers) / d.Mean(), Workers: workers, Work: d,
			Burst: rapid.Float64Range(0, 100).Draw(t, "burst"),
		}
		p99 := q.Quantile(0.99)
		require.GreaterOrEqual(t, p99, d.Quantile(0.99)*(1-1e-9), "work comes after the wait")

		more := q
		more.Workers++
		require.LessOrEqual(t, more.Quantile(0.99), p99*1.02, "another worker")

		less := q
		less.Rate *= 0.9
		less.Burst *= 0.9
		require.LessOrEqual(t, less.Quantile(0.99), p99*1.02, "less work")
	})
}

// TestCalibration verifies that a queue has the wait that was measured, or a longer one.
func TestCalibration(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := anyDistribution(t)
		q := queueing.Queue{Rate: rapid.Float64Range(0.01, 0.95).Draw(t, "busy") / d.Mean(), Workers: 1, Work: d}
		wait := rapid.Float64Range(0, 1000).Draw(t, "wait")
		require.InEpsilon(t, max(wait, q.MeanWait()), q.WithWait(wait).MeanWait(), 1e-9)
	})
}

// anyDistribution returns a distribution, and verifies its mean.
func anyDistribution(t *rapid.T) queueing.Distribution {
	var pieces []queueing.Piece

	low, least, most := 0.0, 0.0, 0.0

	for i := range rapid.IntRange(1, 8).Draw(t, "pieces") {
		width, weight := rapid.Float64Range(0.001, 2).Draw(t, "width"), rapid.Float64Range(0.01, 5).Draw(t, "weight")
		pieces = append(pieces, queueing.Piece{From: low, To: low + width, Weight: weight})
		least, most = least+weight*low, most+weight*(low+width)
		low += width * float64(1+i%2)
	}

	total := 0.0
	for _, p := range pieces {
		total += p.Weight
	}

	mean := (least + rapid.Float64Range(0.05, 0.95).Draw(t, "mean")*(most-least)) / total
	d := queueing.NewDistribution(pieces, mean)
	require.InEpsilon(t, mean, d.Mean(), 1e-9)

	return d
}

// TestDistributionKeepsItsMean verifies the mean, the weights, and that quantiles and tails agree.
func TestDistributionKeepsItsMean(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := anyDistribution(t)
		p := rapid.Float64Range(0.01, 0.99).Draw(t, "p")
		x := d.Quantile(p)
		require.LessOrEqual(t, d.Tail(x), 1-p+1e-6)
		require.GreaterOrEqual(t, d.Tail(x*(1-1e-6)), 1-p-1e-3)
		require.InDelta(t, 1, d.Tail(-1), 1e-9)
	})
}

func TestDistributions(t *testing.T) {
	inf := math.Inf(1)

	for name, c := range map[string]struct {
		pieces    []queueing.Piece
		mean      float64
		wantMean  float64
		p50, most float64
	}{
		"nothing":                   {nil, 5, 0, 0, 0},
		"ignored":                   {[]queueing.Piece{{1, 2, 0}, {1, 2, math.NaN()}}, 5, 0, 0, 0},
		"even":                      {[]queueing.Piece{{1, 3, 4}}, 2, 2, 2, 3},
		"low":                       {[]queueing.Piece{{1, 3, 4}}, 1.5, 1.5, 1.5, 2},
		"high":                      {[]queueing.Piece{{1, 3, 4}}, 2.5, 2.5, 2.5, 3},
		"a mean that cannot be":     {[]queueing.Piece{{1, 3, 4}}, 100, 3, 3, 3},
		"without an end":            {[]queueing.Piece{{10, inf, 1}}, 15, 15, 15, 20},
		"several without an end":    {[]queueing.Piece{{10, inf, 1}, {20, inf, 1}}, 15, 15, 15, 20},
		"with an end that is below": {[]queueing.Piece{{10, inf, 1}}, 5, 10, 10, 10},
	} {
		t.Run(name, func(t *testing.T) {
			d := queueing.NewDistribution(c.pieces, c.mean)
			require.InDelta(t, c.wantMean, d.Mean(), 1e-9)
			require.InDelta(t, c.p50, d.Quantile(0.5), 1e-6)
			require.InDelta(t, c.most, d.Quantile(1), 1e-6)
		})
	}
}

// TestQuantileOfSum compares with the triangle that is the sum of two values between 0 and 1.
func TestQuantileOfSum(t *testing.T) {
	unit := queueing.NewDistribution([]queueing.Piece{{From: 0, To: 1, Weight: 1}}, 0.5)
	require.InDelta(t, 1, queueing.QuantileOfSum(unit, unit, 0.5), 1e-6)
	require.InDelta(t, 2-math.Sqrt(0.02), queueing.QuantileOfSum(unit, unit, 0.99), 1e-6)
	require.Zero(t, queueing.QuantileOfSum(queueing.Distribution{}, queueing.Distribution{}, 0.99))
}

func ExampleQueue() {
	work := queueing.NewDistribution([]queueing.Piece{{From: 0.1, To: 0.3, Weight: 1}}, 0.2)
	for _, workers := range []int{1, 2, 4} {
		q := queueing.Queue{Rate: 4, Workers: workers, Work: work}
		fmt.Printf("%d workers: %.0f %% busy, 99 %% are done within %.1f s\n", workers, 100*q.Busy(), q.Quantile(0.99))
	}
	// Output:
	// 1 workers: 80 % busy, 99 % are done within 2.4 s
	// 2 workers: 40 % busy, 99 % are done within 0.5 s
	// 4 workers: 20 % busy, 99 % are done within 0.3 s
}
