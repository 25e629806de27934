// Package continuity tells what a change of shards has cost the users of a ring: how many objects have moved, how many
// writes of labels that took, and how long the work on objects that users changed meanwhile has taken. It is pure: its
// input is what the API server has stored.
package continuity

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/clusterring/clusterring/tools/testkit/check"
)

// Work is the work on one change of a main object.
type Work struct {
	// Asked is when the change was seen, Took how long it was until the work on it was seen to be done.
	Asked, Took time.Duration
	// Done is false if it was not done when the period ended; then Took counts until that.
	Done bool
}

// Report is what happened in a period. The zero value is that of a period in which nothing happened.
type Report struct {
	// Period is how long it was.
	Period time.Duration
	// Moves are when objects came to another shard than they had before, in order of time.
	Moves []time.Duration
	// Handovers are how long the moves of objects took that their shards have released, in order of time: from the drain
	// until the object had another shard.
	Handovers []time.Duration
	// Labels is the number of writes that changed or removed the shard label of an object, or changed its drain label.
	Labels int
	// Work is the work on the changes of main objects that were seen in the period, in order of time.
	Work []Work
}

// Of returns the report of the period between two times. All times in the result count from its beginning. The versions
// must contain those before the period, and may be in any order.
func Of(versions []check.Version, from, until time.Duration) Report {
	versions = slices.Clone(versions)
	slices.SortFunc(versions, func(a, b check.Version) int { return cmp.Compare(a.Number, b.Number) })

	r := Report{Period: until - from}
	newest, owners, asked := map[string]check.Version{}, map[string]string{}, map[string]time.Duration{}
	drained := map[string]time.Duration{}

	for _, v := range versions {
		before, known := newest[v.UID]
		newest[v.UID] = v

		if v.Kind == check.Lease || v.At > until {
			continue
		}

		owner := owners[v.UID]
		owners[v.UID] = cmp.Or(v.Shard, owner)

		if known && !v.Deleted && v.At >= from && owner != "" {
			if v.Shard != "" && v.Shard != owner {
				r.Moves = append(r.Moves, v.At-from)

				if since, has := drained[v.UID]; has {
					r.Handovers = append(r.Handovers, v.At-since)
				}
			}

			switch {
			case v.Draining && !before.Draining:
				drained[v.UID] = v.At
			case v.Shard != "" && !v.Draining:
				delete(drained, v.UID)
			}

			if v.Shard != before.Shard || v.Draining != before.Draining {
				r.Labels++
			}
		}

		since, pending := asked[v.UID]
		switch {
		case v.Deleted:
			delete(asked, v.UID)
		case known && before.Complete && !v.Complete && v.At >= from:
			asked[v.UID] = v.At
		case pending && v.Complete:
			r.Work = append(r.Work, Work{Asked: since - from, Took: v.At - since, Done: true})
			delete(asked, v.UID)
		}
	}

	for _, since := range asked {
		r.Work = append(r.Work, Work{Asked: since - from, Took: until - since})
	}

	slices.SortFunc(r.Work,
		func(a, b Work) int { return cmp.Or(cmp.Compare(a.Asked, b.Asked), cmp.Compare(a.Took, b.Took)) })

	return r
}

// Quantile returns how long the work on the given part of all changes took at most: 0.5 for the median, 1 for the
// slowest. It is 0 if there was none.
func (r Report) Quantile(part float64) time.Duration {
	took := make([]time.Duration, len(r.Work))
	for i, w := range r.Work {
		took[i] = w.Took
	}

	return Quantile(took, part)
}

// Handover returns how long the given part of all handovers took at most. It is 0 if there was none.
func (r Report) Handover(part float64) time.Duration {
	return Quantile(slices.Clone(r.Handovers), part)
}

// Quantile returns the time that the given part of the times does not exceed; 0 if there are none. It sorts them.
func Quantile(times []time.Duration, part float64) time.Duration {
	if len(times) == 0 {
		return 0
	}

	slices.Sort(times)

	return times[min(int(part*float64(len(times))), len(times)-1)]
}

// Lost returns how many changes were not worked on when the period ended.
func (r Report) Lost() int {
	lost := 0

	for _, w := range r.Work {
		if !w.Done {
			lost++
		}
	}

	return lost
}

// String is one line.
func (r Report) String() string {
	const median, late = 0.5, 0.99

	return fmt.Sprintf("%d objects moved, %d label writes; work on %d changes: median %s, 99%% %s, longest %s, %d not done",
		len(r.Moves), r.Labels, len(r.Work), round(r.Quantile(median)), round(r.Quantile(late)),
		round(r.Quantile(1)), r.Lost())
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
