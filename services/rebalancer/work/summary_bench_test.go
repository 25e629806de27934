package work

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

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
