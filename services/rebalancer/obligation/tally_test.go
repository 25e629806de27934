package obligation

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// A summary says of which resources the objects are and which shards were asked for them, in any order of events.
func TestSummaryNamesResourcesAndShards(t *testing.T) {
	x := New(Limits{Drains: 10, PerShard: 10, DrainTimeout: time.Minute, Active: 100, Parked: 100})
	x.Recheck(time.Unix(1e9, 0), func(shard string) bool { return shard != "gone" }, func(objects.ID) bool { return true })

	see := func(resource, name, shard string, drained bool) {
		id := objects.ID{GVR: schema.GroupVersionResource{Version: "v1", Resource: resource}, Namespace: "x", Name: name}
		x.See(time.Unix(1e9, 0), objects.Object{ID: id, ResourceVersion: "1", Shard: shard, Labelled: true, Draining: drained}, false)
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
		o := objects.Object{ID: id, ResourceVersion: "2"}
		x.See(time.Unix(1e9, 0), o, true)
		checkTable(t, x)
	}

	require.Equal(t, Summary{}, x.Summary())
}

// A summary names what somebody may have to act on, rather than what only waits for that.
func TestSummaryNamesTheCause(t *testing.T) {
	now := time.Unix(1e9, 0)
	x := New(Limits{Drains: 10, PerShard: 10, DrainTimeout: time.Minute, Active: 100, Parked: 100})

	blocked := func(name string, out Outcome) {
		x.See(now, objects.Object{ID: id(name), ResourceVersion: "1"}, false)

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
