package work

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

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
	require.Equal(t, 2, x.timers.all.Len(), "those of the obligations that are left")
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

// Objects that find no room are searched again when half of the room is free, and not before: most of them would find
// none again.
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
	blocked("owner", Outcome{Event: Failed, Reason: "is forbidden"})
	blocked("child", Outcome{Event: Blocked, Cause: OwnerOf(id("owner"))})

	require.Equal(t, 2, x.Summary().Blocked)
	require.Equal(t, id("owner").String()+": is forbidden", x.Summary().BlockedExample)
}

// failer is a table with requests that fail for one resource.
type failer struct {
	*testing.T

	table   *Table
	now     time.Time
	refused schema.GroupVersionResource
	// allowed is an object of the resource whose requests do not fail.
	allowed string
}

// work lets workers do all that is due within a time. It returns the names of the objects that got to their places.
func (f *failer) work(within time.Duration) (done []string) {
	for end := f.now.Add(within); !f.now.After(end); f.now = f.now.Add(10 * time.Millisecond) {
		for job, ok := f.table.Take(f.now); ok; job, ok = f.table.Take(f.now) {
			out := Outcome{Object: &job.Object, Event: SeenInPlace}
			if job.Object.GVR == f.refused && job.Object.Name != f.allowed {
				out = Outcome{Object: &job.Object, Event: Failed, Reason: "is forbidden"}
			} else {
				done = append(done, job.Object.Name)
			}

			f.table.Report(f.now, job.Object.ID, out)
			checkTable(f.T, f.table)
		}
	}

	return done
}

// Objects whose requests fail again and again keep no source waiting, take a bounded amount of room, and are not
// forgotten.
func TestObjectsThatFailHinderNoOther(t *testing.T) {
	const few = 4

	gvr := func(resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Version: "v1", Resource: resource}
	}
	f := &failer{T: t, now: time.Unix(1e9, 0), refused: gvr("secrets"), table: New(Limits{
		Workers: 1000, Drains: 10, PerShard: 10, DrainTimeout: time.Minute, Active: few, Parked: few,
	})}
	see := func(resource string, n int) {
		for i := range n {
			name := fmt.Sprint(resource, i)
			f.table.See(f.now, feed.Object{ID: feed.ID{GVR: gvr(resource), Namespace: "x", Name: name}, ResourceVersion: "1"},
				false)
			checkTable(t, f.table)
		}
	}

	see("secrets", few)
	require.True(t, f.table.Full())
	f.work(2 * time.Second)
	require.True(t, f.table.Full(), "a short disturbance")
	require.Zero(t, f.table.Summary().Failing)
	f.work(20 * time.Second)
	require.False(t, f.table.Full())
	require.Equal(t, few, f.table.Summary().Failing)
	require.Contains(t, f.table.Summary().FailingExample, "secrets0: is forbidden")

	see("secrets", few+2)
	see("pods", few-1)
	require.Len(t, f.work(time.Second), few-1)
	require.Len(t, f.table.entries, few, "each of the others is tried, and finds no room")
	require.Equal(t, few, f.table.Summary().Failing)
	require.Equal(t, few, f.table.Summary().Blocked, "those that wait for their next attempt")
	require.True(t, f.table.Summary().More)

	_, owed := f.table.Debt()
	require.False(t, owed)

	f.allowed = "secrets5"

	see("secrets", few+3)
	require.Equal(t, []string{"secrets5"}, f.work(time.Second), "others of the resource are not refused")

	f.refused = schema.GroupVersionResource{}
	require.Len(t, f.work(time.Minute), few)
	d, owed := f.table.Debt()
	require.True(t, owed)
	require.Equal(t, Debt{Relist: true}, d)
	require.Equal(t, Summary{}, f.table.Summary())
}

// BenchmarkSummary takes the summary of a full table, as the engine does up to four times a second.
func BenchmarkSummary(b *testing.B) {
	now := time.Unix(1e9, 0)
	works := sets.New[string]()

	for i := range 100 {
		works.Insert(fmt.Sprint("shard-", i))
	}

	limits := defaults
	limits.Drains, limits.PerShard = 1000, 100
	x := New(limits)
	x.Recheck(now, works.Has, func(feed.ID) bool { return true })

	for i := range 60_000 {
		gvr := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: fmt.Sprint("resource-", i%4)}
		x.See(now, feed.Object{
			ID:              feed.ID{GVR: gvr, Namespace: fmt.Sprint("namespace-", i%100), Name: fmt.Sprint("some-object-", i)},
			ResourceVersion: "1", Shard: fmt.Sprint("shard-", i%120), Labelled: true, Draining: i%7 == 0,
		}, false)
	}

	for job, ok := x.Take(now); ok; job, ok = x.Take(now) {
		out := Outcome{Object: &job.Object, Event: Blocked, Cause: HeldBy(job.Object.Shard), RetryAfter: time.Hour}
		if job.Object.Draining {
			out = Outcome{Object: &job.Object, Event: Asked}
		}

		x.Report(now, job.Object.ID, out)
	}

	for b.Loop() {
		x.Summary()
	}
}
