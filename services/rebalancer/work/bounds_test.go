package work

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

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
	require.Len(t, x.timers.all, 2, "those of the obligations that are left")
	require.Empty(t, x.parked)
	require.Zero(t, x.lanes.all[0].waiting(), "nothing is due")

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

	require.Equal(t, 2, x.parked[HeldBy("c")].entries.Len())
}

// Objects that find no room are searched again when half of the room is free, and not before: most of them would find none
// again.
func TestWhatFindsNoRoomIsSearchedAtHalfOfIt(t *testing.T) {
	now := time.Unix(1_000_000_000, 0)
	limits := defaults
	limits.Parked = 4
	x := New(limits)
	x.Recheck(now, func(s string) bool { return s == "a" }, func(feed.ID) bool { return true })

	of := func(i int) feed.ID { return id(fmt.Sprint("y", i)) }
	work := func(out Outcome) {
		job, ok := x.Take(now)
		require.True(t, ok)

		if out.Object = &job.Object; out.Event == Blocked {
			out.Cause = TurnOf(types.UID(job.Object.Name))
		}

		x.Report(now, job.Object.ID, out)
		checkTable(t, x)
	}

	for pass := range 3 {
		for i := range 8 {
			if _, known := x.Has(of(i)); !known {
				x.See(now, feed.Object{ID: of(i), ResourceVersion: "1"}, false)
				work(Outcome{Event: Blocked})
			}
		}

		require.Equal(t, limits.Parked, x.phases[Parked])
		require.True(t, x.Summary().More)

		d, owed := x.Debt()
		require.False(t, owed, "pass %d: %+v", pass, d)
		x.Search() // a pass begins

		d, _ = x.Debt()
		require.Equal(t, Debt{Relist: true}, d, "a pass does not see objects without a label")
	}

	x.See(now, feed.Object{ID: of(9), ResourceVersion: "1"}, false)
	work(Outcome{Event: Blocked})

	for i := range 2 {
		_, owed := x.Debt()
		require.False(t, owed)
		x.Wake(TurnOf(types.UID(of(i).Name)))
		work(Outcome{Event: SeenInPlace})
	}

	d, _ := x.Debt()
	require.Equal(t, Debt{Relist: true}, d)
	require.False(t, x.Summary().More)
}
