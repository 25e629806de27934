package capacity

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/clusterring/clusterring/tools/lab/continuity"
)

// Shards are shards that cost nothing: queues, in order, with workers that need the same time for each change.
type Shards struct {
	// Workers is the number of workers of each shard. Work is how long one needs for a change.
	Workers int
	Work    time.Duration
	// Shares are the parts of the objects that the shards have. Their sum is 1.
	Shares []float64
}

// Even returns n equal shares.
func Even(n int) []float64 { return slices.Repeat([]float64{1 / float64(n)}, n) }

// change is what becomes of a change of a shard. All times count from the beginning.
type change struct {
	asked, begun, done time.Duration
	shard              int
}

// changes returns what becomes of changes that come at a rate, up to an end, in the order of their arrival.
func (s Shards) changes(rng *rand.Rand, rate Rate, end time.Duration) (all []change) {
	// The changes in a queue begin in order. Therefore, one begins when it has come, and when that one is done which came
	// as many before it as there are workers.
	queues := make([][]time.Duration, len(s.Shares))

	for at := range rate.Arrivals(rng, end) {
		c := change{asked: at, begun: at, shard: s.pick(rng.Float64())}

		q := &queues[c.shard]
		if len(*q) >= s.Workers {
			c.begun = max(at, (*q)[len(*q)-s.Workers])
		}

		c.done = c.begun + s.Work
		*q = append(*q, c.done)
		all = append(all, c)
	}

	return all
}

// pick returns the shard of an object that is chosen by chance.
func (s Shards) pick(at float64) int {
	for i, share := range s.Shares {
		if at -= share; at < 0 {
			return i
		}
	}

	return len(s.Shares) - 1
}

// Ramp returns the samples of every second under a rate, up to an end.
func (s Shards) Ramp(rng *rand.Rand, rate Rate, end time.Duration) []Sample {
	// The last one is for what comes after the end.
	n, last := len(s.Shares), int(end/time.Second)
	samples, begun := make([]Sample, last+1), make([]continuity.Counts, (last+1)*n)

	for i := range samples {
		samples[i] = Sample{At: time.Duration(i+1) * time.Second, Begun: begun[i*n : (i+1)*n]}
	}

	// at returns the first sample that includes an observation at a time.
	at := func(t time.Duration) *Sample { return &samples[min(int((t-1)/time.Second), last)] }

	for _, c := range s.changes(rng, rate, end) {
		begun := &at(c.begun).Begun[c.shard]
		*begun = begun.And(c.begun-c.asked, beginsWithin)
		done := &at(c.done).Done
		*done = done.And(c.done-c.asked, DoneWithin)
	}

	for i := range last {
		for shard, c := range samples[i].Begun {
			samples[i+1].Begun[shard] = samples[i+1].Begun[shard].Plus(c)
		}

		samples[i+1].Done = samples[i+1].Done.Plus(samples[i].Done)
	}

	return samples[:last]
}

// Highest returns the highest steady rate at which the shards keep the objectives, in the sense given, in a window, by
// [Bisect].
func (s Shards) Highest(rng *rand.Rand, window time.Duration, steps int, kept func(Sample) bool) float64 {
	rate, _ := Bisect(s.Most(), steps, func(rate float64) (bool, error) {
		samples := s.Ramp(rng, Rate{Base: rate}, window)

		return kept(samples[len(samples)-1]), nil
	})

	return rate
}

// Most returns how many changes per second all workers can do.
func (s Shards) Most() float64 { return float64(s.Workers*len(s.Shares)) / s.Work.Seconds() }

// Bisect returns the highest rate that is good, in so many steps, between half of the most and the most; 0 if none is.
func Bisect(most float64, steps int, good func(rate float64) (bool, error)) (best float64, err error) {
	low, high := most/2, most //nolint:mnd // half

	for range steps {
		rate := (low + high) / 2 //nolint:mnd // in the middle

		ok, err := good(rate)
		if err != nil {
			return 0, err
		}

		if ok {
			low, best = rate, rate
		} else {
			high = rate
		}
	}

	return best, nil
}
