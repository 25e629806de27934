package work

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// Finished work costs nothing: an object that changes continuously while it is drained, one that fails, and many that come and
// go leave neither timers nor places behind.
func TestNothingGrowsWithChanges(t *testing.T) {
	now := time.Unix(1_000_000_000, 0)
	x := New(defaults)
	x.Recheck(now, func(s string) bool { return s == "a" }, func(feed.ID) bool { return true })

	for i := range 20_000 {
		o := feed.Object{ID: id("x"), ResourceVersion: fmt.Sprint(i), Shard: "a", Draining: true}
		x.See(now, o, false)

		job, ok := x.Take(now)
		require.True(t, ok)
		x.Report(now, job.Object.ID, Outcome{Object: &o, Event: Asked})

		other := feed.Object{ID: id(fmt.Sprint("y", i)), ResourceVersion: "1", Shard: "c"}
		x.See(now, other, false)

		_, ok = x.Take(now)
		require.True(t, ok)

		if i%2 == 0 {
			x.Report(now, other.ID, Outcome{Object: &other, Event: Failed})
		} else {
			x.Report(now, other.ID, Outcome{Object: &other, Event: Blocked, Cause: HeldBy("c"), RetryAfter: time.Hour})
		}

		if i > 0 {
			x.See(now, feed.Object{ID: other.ID, ResourceVersion: "2", Shard: "a"}, true)
		}
	}

	require.Len(t, x.entries, 2, "only the drain and the first of the others should be stored")
	require.LessOrEqual(t, len(x.timers.all), 2*fewTimers)
	require.Empty(t, x.parked)
	require.Zero(t, x.urgent.entries.Len()+x.regular.entries.Len(), "nothing is due")

	for i := range 20_000 { // with an object that stays
		o := feed.Object{ID: id("z"), ResourceVersion: fmt.Sprint(i), Shard: "c"}
		x.See(now, o, false)

		job, ok := x.Take(now)
		require.True(t, ok)
		x.Report(now, job.Object.ID, Outcome{Object: &o, Event: Blocked, Cause: HeldBy("c"), RetryAfter: time.Hour})

		if i == 0 {
			x.See(now, feed.Object{ID: id("stays"), ResourceVersion: "1", Shard: "c"}, false)
			_, _ = x.Take(now)
			x.Report(now, id("stays"), Outcome{Event: Blocked, Cause: HeldBy("c")})
		}
	}

	require.LessOrEqual(t, len(x.parked[HeldBy("c")].entries), 100)
}

// Each pass sees the objects that found no room again, and they are counted once.
func TestWhatFindsNoRoomIsCountedOnce(t *testing.T) {
	now := time.Unix(1_000_000_000, 0)
	limits := defaults
	limits.Parked = 5
	x := New(limits)
	x.Recheck(now, func(s string) bool { return s == "a" }, func(feed.ID) bool { return true })

	pass := func(n int) {
		x.Recount()

		for i := range n {
			o := feed.Object{ID: id(fmt.Sprint("y", i)), ResourceVersion: "1", Shard: "c"}
			x.See(now, o, false)

			if job, ok := x.Take(now); ok {
				x.Report(now, job.Object.ID, Outcome{Object: &o, Event: Blocked, Cause: HeldBy("c"), RetryAfter: time.Hour})
			}
		}

		checkTable(t, x)
	}

	for range 3 {
		pass(20)
		require.Equal(t, 20, x.Summary().Blocked)
	}

	pass(8)
	pass(8)
	require.Equal(t, 8, x.Summary().Blocked, "the others are gone, which is not known yet")

	x.Wake(HeldBy("c"))

	d, _ := x.Debt()
	require.Equal(t, []string{"c"}, d.Lost)
	require.Zero(t, x.Summary().Blocked)
	checkTable(t, x)
}
