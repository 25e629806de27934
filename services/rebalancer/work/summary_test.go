package work

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// A summary says of which resources the objects are and which shards were asked for them, in any order of events.
func TestSummaryNamesResourcesAndShards(t *testing.T) {
	x := New(Limits{Workers: 1000, Drains: 10, PerShard: 10, DrainTimeout: time.Minute, Active: 100, Parked: 100})
	x.Recheck(time.Unix(1e9, 0), func(shard string) bool { return shard != "gone" }, func(feed.ID) bool { return true })

	see := func(resource, name, shard string, drained bool) {
		id := feed.ID{GVR: schema.GroupVersionResource{Version: "v1", Resource: resource}, Namespace: "x", Name: name}
		x.See(time.Unix(1e9, 0), feed.Object{ID: id, ResourceVersion: "1", Shard: shard, Labelled: true, Draining: drained}, false)
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

// Objects whose requests fail again and again keep no source waiting, take a bounded amount of room, and are not forgotten.
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
			f.table.See(f.now, feed.Object{ID: feed.ID{GVR: gvr(resource), Namespace: "x", Name: name}, ResourceVersion: "1"}, false)
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
