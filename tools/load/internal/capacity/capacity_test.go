package capacity

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/tools/lab/continuity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func counts(all, within int) continuity.Counts { return continuity.Counts{All: all, Within: within} }

func chance(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

func TestArrivals(t *testing.T) {
	const end = 1000 * time.Second

	for name, tc := range map[string]struct {
		rate Rate
		want [2]float64 // in the first half, and in the second
	}{
		"steady":  {Rate{Base: 20}, [2]float64{10_000, 10_000}},
		"growing": {Rate{Slope: 0.04}, [2]float64{5_000, 15_000}},
		"both":    {Rate{Base: 10, Slope: 0.02}, [2]float64{7_500, 12_500}},
	} {
		t.Run(name, func(t *testing.T) {
			all := slices.Collect(tc.rate.Arrivals(chance(1), end))
			require.True(t, slices.IsSorted(all))

			half, _ := slices.BinarySearch(all, end/2)
			require.InEpsilon(t, tc.want[0], half, 0.04)
			require.InEpsilon(t, tc.want[1], len(all)-half, 0.04)
		})
	}

	require.InDelta(t, 12, Rate{Base: 2, Slope: 0.1}.At(100*time.Second), 1e-9)
}

func every(d time.Duration, n int) func(func(time.Duration) bool) {
	return func(yield func(time.Duration) bool) {
		for i := range n {
			if !yield(time.Duration(i) * d) {
				return
			}
		}
	}
}

// A change that takes long does not delay the next one, up to a limit.
func TestGeneratorIsAnOpenLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := Generator{Clock: clock.RealClock{}, Change: func(context.Context) error {
			clock.RealClock{}.Sleep(time.Second)
			return nil
		}}

		o := slow.Run(t.Context(), every(10*time.Millisecond, 1000)) // 100 at a time
		require.Equal(t, Offered{Asked: 1000, Took: slices.Repeat([]time.Duration{time.Second}, 1000)}, o)
		require.NoError(t, o.Check())

		o.Took[0], o.Took[10] = time.Minute, time.Minute
		require.NoError(t, o.Check(), "99 % count")

		o.Took = append(o.Took[11:], slices.Repeat([]time.Duration{time.Minute}, 11)...)
		require.EqualError(t, o.Check(), "changes took up to 1m0s")

		o = slow.Run(t.Context(), every(time.Millisecond, 1000)) // five times as many as it may
		require.ErrorContains(t, o.Check(), "changes began up to ")
	})
}

func TestGeneratorThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		n := atomic.Int32{}
		g := Generator{Clock: clock.RealClock{}, Change: func(context.Context) error {
			if n.Add(1) == 60 {
				stop()
			}

			return errors.New("refused")
		}}

		o := g.Run(ctx, every(10*time.Millisecond, 1000))
		require.Equal(t, 60, o.Asked, "it ends with its context")
		require.EqualError(t, o.Check(), "only 0 of 60 changes were made")
	})
}

func TestKnee(t *testing.T) {
	sample := func(at, begun, done int) Sample {
		return Sample{
			At: time.Duration(at) * time.Second, Begun: []continuity.Counts{counts(100, begun)}, Done: counts(100, done),
		}
	}

	require.Equal(t, 3*time.Second, Knee([]Sample{
		sample(1, 100, 100), sample(2, 98, 100), sample(3, 99, 99), sample(4, 100, 98), sample(5, 0, 0),
	}))
	require.Zero(t, Knee([]Sample{sample(1, 98, 98)}))
}

// A cold start of shards, and whatever else was before, does not count.
func TestSamplesSinceAnother(t *testing.T) {
	of := func(done continuity.Counts, begun ...continuity.Counts) Sample {
		return Sample{Begun: begun, Done: done}
	}
	flooded := of(counts(5, 0), counts(300, 0), counts(10, 10))
	later := of(counts(1005, 999), counts(800, 495), counts(1510, 1510))
	require.False(t, later.Kept())

	now := later.Minus(flooded)
	require.Equal(t, of(counts(1000, 999), counts(500, 495), counts(1500, 1500)), now)
	require.True(t, now.Kept())
	require.True(t, now.KeptByEach())

	now.Begun[0].Within = 494
	require.True(t, now.Kept(), "all of them together")
	require.False(t, now.KeptByEach())
}

// The capacity of shards that cost nothing, divided by that of one, by each method: no sharder can reach more. The
// figures are means over many runs. One ramp for all sizes finds less than there is, because what was counted before
// the knee hides the overload for longer at one shard.
func TestIdeal(t *testing.T) {
	const (
		workers = 12
		work    = time.Second
		slope   = 75.0 / 900 // of the thesis: to 75 changes per second, in 15 minutes
	)

	// mean returns the mean capacity of n equal shards by a method.
	mean := func(n, runs int, of func(Shards, *rand.Rand) float64) (sum float64) {
		for i := range runs {
			sum += of(Shards{Workers: workers, Work: work, Shares: Even(n)}, chance(uint64(i)))
		}

		return sum / float64(runs)
	}
	ramp := func(slope float64) func(Shards, *rand.Rand) float64 {
		return func(s Shards, rng *rand.Rand) float64 {
			end := time.Duration(2 * workers * float64(len(s.Shares)) / slope * float64(time.Second))
			rate := Rate{Slope: slope}

			return rate.At(Knee(s.Ramp(rng, rate, end)))
		}
	}
	window := func(s Shards) time.Duration { return time.Duration(10_000 / s.Most() * float64(time.Second)) }
	steady := func(s Shards, rng *rand.Rand) float64 { return s.Highest(rng, window(s), 8, Sample.Kept) }

	one := mean(1, 100, ramp(slope))
	require.InDelta(t, 4.53, mean(5, 10, ramp(slope))/one, 0.15)
	require.InDelta(t, 8.97, mean(10, 10, ramp(slope))/one, 0.3)
	require.InDelta(t, 4.75, mean(5, 10, ramp(5*slope))/one, 0.15)
	require.InDelta(t, 9.42, mean(10, 10, ramp(10*slope))/one, 0.3)

	first := mean(1, 10, steady)
	require.InDelta(t, 0.83, first/workers, 0.03)
	require.InDelta(t, 5.0, mean(5, 5, steady)/first, 0.15)
	require.InDelta(t, 9.9, mean(10, 5, steady)/first, 0.3)

	uneven := Shards{Workers: workers, Work: work, Shares: []float64{0.6, 0.4}}
	require.Less(t, steady(uneven, chance(1)), 1.8*first, "the fullest shard decides")
	require.InDelta(t, first/0.6, uneven.Highest(chance(1), window(uneven), 8, Sample.KeptByEach), 1, "and even more so")
}
