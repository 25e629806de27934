// Package continuity tells what a change of shards has cost the users of a ring: how many objects have moved, how many
// writes of labels that took, and how long the work on changes of objects has taken. Its input is what the API server
// has stored.
package continuity

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/clusterring/clusterring/tools/testkit/check"
)

// Report is what happened in a period. The zero value is that of a period in which nothing happened.
type Report struct {
	// Period is how long it was.
	Period time.Duration
	// Moves are when objects came to another shard than they had before, in order of time.
	Moves []time.Duration
	// Labels is the number of writes that changed or removed the shard label of an object, or changed its drain label.
	Labels int
}

// Of returns the report of the period between two times. All times in the result count from its beginning. The versions
// must contain those before the period, and may be in any order.
func Of(versions []check.Version, from, until time.Duration) Report {
	versions = slices.Clone(versions)
	slices.SortFunc(versions, func(a, b check.Version) int { return cmp.Compare(a.Number, b.Number) })

	r := Report{Period: until - from}
	newest, owners := map[string]check.Version{}, map[string]string{}

	for _, v := range versions {
		before, known := newest[v.UID]
		newest[v.UID] = v

		if v.Kind == check.Lease || v.At > until {
			continue
		}

		owner := owners[v.UID]
		owners[v.UID] = cmp.Or(v.Shard, owner)

		if !known || v.Deleted || v.At < from || owner == "" {
			continue
		}

		if v.Shard != "" && v.Shard != owner {
			r.Moves = append(r.Moves, v.At-from)
		}

		if v.Shard != before.Shard || v.Draining != before.Draining {
			r.Labels++
		}
	}

	return r
}

// Quantile returns the time that the given part of the times does not exceed; 0 if there are none. It sorts them.
func Quantile(times []time.Duration, part float64) time.Duration {
	if len(times) == 0 {
		return 0
	}

	slices.Sort(times)

	return times[min(int(part*float64(len(times))), len(times)-1)]
}

// String is one line.
func (r Report) String() string {
	return fmt.Sprintf("%d objects moved, %d label writes in %s", len(r.Moves), r.Labels,
		r.Period.Round(time.Millisecond))
}
