package work

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// Finished work costs nothing: an object that changes continuously while it is drained, one that fails, and many that
// come and go leave neither timers nor places behind.
func TestNothingGrowsWithChanges(t *testing.T) {
	now := time.Unix(1_000_000_000, 0)
	x := New(defaults)
	x.Recheck(now, func(s string) bool { return s == "a" }, func(feed.ID) bool { return true })

	for i := range 20_000 {
		o := feed.Object{ID: id("x"), ResourceVersion: fmt.Sprint(i), Shard: "a", Draining: true}
		x.See(now, o, false)

		job, ok := x.Take(now)
		require.True(t, ok)
		x.Report(now, job.Object.ID, Outcome{Object: &o, Next: Draining})

		other := feed.Object{ID: id(fmt.Sprint("y", i)), ResourceVersion: "1", Shard: "c"}
		x.See(now, other, false)

		_, ok = x.Take(now)
		require.True(t, ok)

		if i%2 == 0 {
			x.Report(now, other.ID, Outcome{Object: &other, Next: Delayed})
		} else {
			x.Report(now, other.ID, Outcome{Object: &other, Next: Parked, Cause: HeldBy("c"), RetryAfter: time.Hour})
		}

		if i > 0 {
			x.See(now, feed.Object{ID: other.ID, ResourceVersion: "2", Shard: "a"}, true)
		}
	}

	require.Len(t, x.entries, 2, "only the drain and the first of the others should be stored")
	require.Equal(t, 3, x.timers.Len(), "those of the obligations that are left, and of the move of the drain")
	require.Empty(t, x.parked)
	require.Zero(t, x.lanes.all[0].waiting(), "nothing is due")

	for i := range 20_000 { // with an object that stays
		o := feed.Object{ID: id("z"), ResourceVersion: fmt.Sprint(i), Shard: "c"}
		x.See(now, o, false)

		job, ok := x.Take(now)
		require.True(t, ok)
		x.Report(now, job.Object.ID, Outcome{Object: &o, Next: Parked, Cause: HeldBy("c"), RetryAfter: time.Hour})

		if i == 0 {
			x.See(now, feed.Object{ID: id("stays"), ResourceVersion: "1", Shard: "c"}, false)
			_, _ = x.Take(now)
			x.Report(now, id("stays"), Outcome{Next: Parked, Cause: HeldBy("c")})
		}
	}

	require.Equal(t, 2, x.parked[HeldBy("c")].entries.Len())
}

// A summary says of which resources the objects are and which shards were asked for them, in any order of events.
func TestSummaryNamesResourcesAndShards(t *testing.T) {
	x := New(Limits{Workers: 1000, Drains: 10, PerShard: 10, DrainTimeout: time.Minute, Active: 100, Parked: 100})
	x.Recheck(time.Unix(1e9, 0), func(shard string) bool { return shard != "gone" }, func(feed.ID) bool { return true })

	see := func(resource, name, shard string, drained bool) {
		id := feed.ID{GVR: schema.GroupVersionResource{Version: "v1", Resource: resource}, Namespace: "x", Name: name}
		x.See(time.Unix(1e9, 0), feed.Object{ID: id, ResourceVersion: "1", Shard: shard, Labelled: true, Draining: drained},
			false)
		checkTable(t, x)
	}
	see("pods", "a", "a", true)
	see("pods", "b", "b", true)
	see("pods", "c", "b", true)
	see("pods", "d", "c", false)
	see("services", "a", "gone", true)

	s := x.Summary()
	require.Equal(t, []Share{{"pods", 4}, {"services", 1}}, s.Resources)
	require.Equal(t, []Share{{"b", 2}, {"a", 1}}, s.Asked, "a shard that is gone releases nothing")

	for id := range x.entries {
		o := feed.Object{ID: id, ResourceVersion: "2"}
		x.See(time.Unix(1e9, 0), o, true)
		checkTable(t, x)
	}

	require.Equal(t, Summary{}, x.Summary())
}

// A summary names what somebody may have to act on, rather than what only waits for that.
func TestSummaryNamesTheCause(t *testing.T) {
	now := time.Unix(1e9, 0)
	x := New(Limits{Workers: 1000, Drains: 10, PerShard: 10, DrainTimeout: time.Minute, Active: 100, Parked: 100})

	blocked := func(name string, out Outcome) {
		x.See(now, feed.Object{ID: id(name), ResourceVersion: "1"}, false)

		job, ok := x.Take(now)
		require.True(t, ok)
		require.Equal(t, id(name), job.Object.ID)
		x.Report(now, id(name), out)
		checkTable(t, x)
	}
	blocked("owner", Outcome{Next: Delayed, Reason: "is forbidden"})
	blocked("child", Outcome{Next: Parked, Cause: OwnerOf(id("owner"))})

	require.Equal(t, 2, x.Summary().Blocked)
	require.Equal(t, id("owner").String()+": is forbidden", x.Summary().BlockedExample)
}

// Objects whose requests fail again and again keep no source waiting, take a bounded amount of room, and are not
// forgotten.
func TestObjectsThatFailHinderNoOther(t *testing.T) {
	const few = 4

	gvr := func(resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Version: "v1", Resource: resource}
	}
	now, refused, allowed := time.Unix(1e9, 0), gvr("secrets"), ""
	x := New(Limits{Workers: 1000, Drains: 10, PerShard: 10, DrainTimeout: time.Minute, Active: few, Parked: few})
	// work does all that is due within a time, and returns the names of the objects that got to their places.
	work := func(within time.Duration) (done []string) {
		for end := now.Add(within); !now.After(end); now = now.Add(10 * time.Millisecond) {
			for job, ok := x.Take(now); ok; job, ok = x.Take(now) {
				out := Outcome{Object: &job.Object, Next: InPlace}
				if job.Object.GVR == refused && job.Object.Name != allowed {
					out = Outcome{Object: &job.Object, Next: Delayed, Reason: "is forbidden"}
				} else {
					done = append(done, job.Object.Name)
				}

				x.Report(now, job.Object.ID, out)
				checkTable(t, x)
			}
		}

		return done
	}
	see := func(resource string, n int) {
		for i := range n {
			name := fmt.Sprint(resource, i)
			x.See(now, feed.Object{ID: feed.ID{GVR: gvr(resource), Namespace: "x", Name: name}, ResourceVersion: "1"},
				false)
			checkTable(t, x)
		}
	}

	see("secrets", few)
	require.True(t, x.Full())
	work(2 * time.Second)
	require.True(t, x.Full(), "a short disturbance")
	require.Zero(t, x.Summary().Failing)
	work(20 * time.Second)
	require.False(t, x.Full())
	require.Equal(t, few, x.Summary().Failing)
	require.Contains(t, x.Summary().FailingExample, "secrets0: is forbidden")

	see("secrets", few+2)
	see("pods", few-1)
	require.Len(t, work(time.Second), few-1)
	require.Len(t, x.entries, few, "each of the others is tried, and finds no room")
	require.Equal(t, few, x.Summary().Failing)
	require.Equal(t, few, x.Summary().Blocked, "those that wait for their next attempt")
	require.True(t, x.Summary().More)

	_, owed := x.Debt()
	require.False(t, owed)

	allowed = "secrets5"

	see("secrets", few+3)
	require.Equal(t, []string{"secrets5"}, work(time.Second), "others of the resource are not refused")

	refused = schema.GroupVersionResource{}
	require.Len(t, work(time.Minute), few)

	d, owed := x.Debt()
	require.True(t, owed)
	require.Equal(t, Debt{All: true, Relist: true}, d)
	require.Equal(t, Summary{}, x.Summary())
}
