// Package history checks, from what shards have recorded of their reconciles, that no two of them ever worked on one
// object at the same time.
//
// It reads the lines that the example controller writes with --history-file: one when a reconcile starts, one when it ends.
package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Worker is a process that reconciles.
type Worker struct {
	// Shard is the name of the shard, PID the process that bears it: a shard may come back as another process.
	Shard string
	PID   int
}

// Span is one reconcile of one object.
type Span struct {
	// Object names the object among all others.
	Object string
	Worker Worker
	// Start and End are comparable between the processes of a machine. A zero End means that no end was recorded.
	Start, End time.Time
}

// Overlap is a pair of reconciles of one object by two workers that ran at the same time. First began first.
type Overlap struct {
	First, Second Span
}

// String says who overlapped whom on what, and for how long.
func (o Overlap) String() string {
	end := o.First.End
	if o.Second.End.Before(end) {
		end = o.Second.End
	}
	const layout = "15:04:05.000000"
	return fmt.Sprintf("%s: %s worked on it from %s to %s, %s from %s to %s: both for %s", o.First.Object,
		o.First.Worker.Shard, o.First.Start.Format(layout), o.First.End.Format(layout),
		o.Second.Worker.Shard, o.Second.Start.Format(layout), o.Second.End.Format(layout), end.Sub(o.Second.Start))
}

// Close gives every span without an end the time at which its process ended, by ended (which is by process id), and where
// that has no entry, for the process lives, now: a process that is gone does not work any more.
func Close(spans []Span, ended map[int]time.Time, now time.Time) []Span {
	closed := slices.Clone(spans)
	for i := range closed {
		if !closed[i].End.IsZero() {
			continue
		}
		closed[i].End = now
		if end, gone := ended[closed[i].Worker.PID]; gone {
			closed[i].End = end
		}
	}
	return closed
}

// Overlaps returns pairs of closed spans of one object that overlap though their workers differ, in the order in which the
// overlaps began. Every span that began during another worker's is in a pair, with that worker's span which ends last. A
// span that begins at the instant at which another ends does not overlap it.
func Overlaps(spans []Span) []Overlap {
	ordered := slices.Clone(spans)
	slices.SortFunc(ordered, func(a, b Span) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), a.Start.Compare(b.Start), a.End.Compare(b.End))
	})
	var found []Overlap
	object, latest := "", map[Worker]Span{} // of that object, each worker's span so far that ends last
	for _, span := range ordered {
		if span.Object != object {
			object = span.Object
			clear(latest)
		}
		for _, other := range slices.SortedFunc(maps.Keys(latest), compareWorkers) {
			if other != span.Worker && span.Start.Before(latest[other].End) {
				found = append(found, Overlap{First: latest[other], Second: span})
			}
		}
		if span.End.After(latest[span.Worker].End) {
			latest[span.Worker] = span
		}
	}
	slices.SortStableFunc(found, func(a, b Overlap) int { return a.Second.Start.Compare(b.Second.Start) })
	return found
}

func compareWorkers(a, b Worker) int {
	return cmp.Or(cmp.Compare(a.Shard, b.Shard), cmp.Compare(a.PID, b.PID))
}
