package continuity_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/testkit/check"
)

func TestOf(t *testing.T) {
	number := uint64(0)
	at := func(second int, v check.Version) check.Version {
		number++
		v.Number, v.At, v.Kind = number, time.Duration(second)*time.Second, check.Website

		return v
	}
	versions := []check.Version{
		at(1, check.Version{UID: "a"}), // a create is no change
		at(1, check.Version{UID: "a", Shard: "one", Complete: true}),
		at(2, check.Version{UID: "a", Shard: "one"}), // before the period
		at(3, check.Version{UID: "a", Shard: "one", Complete: true}),
		at(11, check.Version{UID: "a", Shard: "one"}),
		at(12, check.Version{UID: "a", Shard: "one", Draining: true}),
		at(13, check.Version{UID: "a"}),
		at(14, check.Version{UID: "a", Shard: "two"}),
		at(15, check.Version{UID: "a", Shard: "two", Complete: true}),
		at(15, check.Version{UID: "b", Shard: "two", Complete: true}), // new: it has not moved
		at(16, check.Version{UID: "b", Shard: "two"}),
		at(16, check.Version{UID: "c", Shard: "two", Complete: true}),
		at(17, check.Version{UID: "c", Shard: "two"}),
		at(18, check.Version{UID: "c", Shard: "one", Deleted: true}),
		at(21, check.Version{UID: "b", Shard: "one", Complete: true}), // after the period
	}

	r := continuity.Of(versions, 10*time.Second, 20*time.Second)
	require.Equal(t, continuity.Report{Period: 10 * time.Second, Moves: []time.Duration{4 * time.Second}, Labels: 3}, r)
	require.Equal(t, "1 objects moved, 3 label writes in 10s", r.String())
}

func TestQuantile(t *testing.T) {
	require.Zero(t, continuity.Quantile(nil, 0.5))

	var took []time.Duration
	for i := range 200 {
		took = append(took, time.Duration(200-i)*time.Second)
	}

	require.Equal(t, 101*time.Second, continuity.Quantile(took, 0.5))
	require.Equal(t, 199*time.Second, continuity.Quantile(took, 0.99))
	require.Equal(t, 200*time.Second, continuity.Quantile(took, 1))
}

func TestTracker(t *testing.T) {
	r := continuity.NewTracker(5 * time.Second)

	r.Changed("a", 2, 1*time.Second)
	r.Changed("a", 3, 2*time.Second)
	r.Observed("a", 1, 3*time.Second) // the work on the create
	r.Changed("b", 2, 3*time.Second)

	done, pending, worked := r.Totals()
	require.Equal(t, []any{continuity.Counts{}, 3, 0}, []any{done, pending, worked})

	r.Observed("a", 3, 7*time.Second) // and 2, which was skipped
	r.Observed("b", 2, 4*time.Second)
	r.Observed("c", 5, 4*time.Second)
	r.Changed("c", 5, 4100*time.Millisecond) // the answer came after the event

	done, pending, worked = r.Totals()
	require.Equal(t, []any{continuity.Counts{All: 4, Within: 3}, 0, 1}, []any{done, pending, worked})
	require.Equal(t, continuity.Counts{All: 1}, done.Minus(continuity.Counts{All: 3, Within: 3}))
	require.Equal(t, []time.Duration{6 * time.Second, 5 * time.Second, time.Second, 0}, r.Took()[:4])
	require.Empty(t, r.Took())

	r.Changed("d", 2, 5*time.Second)
	r.Deleted("d")

	_, pending, _ = r.Totals()
	require.Zero(t, pending, "nobody works on an object that is gone")
}
