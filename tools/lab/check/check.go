// Package check decides from the records of a run whether sharding kept its promises.
//
// It reads what the API server stored (versions of objects and Leases), which of these were written by a shard to give an
// object up, and what shards recorded of their reconciles; it returns [Violation]s. It is pure: the same records give the
// same answer, so a failed run can be looked at again.
//
// The invariants, by the numbers of docs/how-it-works.md:
//
//	I1  At most one process works on a main object, or on what that object controls, at a time. Nobody begins to work after
//	    its Lease was seen to be another's.
//	I2  An object is without an available shard for a bounded time only, while there is one.
//	I6  While a shard holds its Lease, a main object leaves it only by the shard's own write, after a drain; a controlled
//	    object leaves it only after its owner has. A deleted Lease counts as held for twice its duration.
//	I7  In the end all is in place: see [Final].
//	I9  Of a Fleet there never were more Ships than it shall have: nobody deletes any, and none is made twice.
//
// One exception is documented: a process that was frozen may finish the reconciles that it was in when it was frozen.
package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/clusterring/clusterring/tools/example/history"
)

// Kinds of versions.
const (
	// Lease is a shard's Lease: its name is the shard's.
	Lease = "Lease"
	// Website is a main object.
	Website = "Website"
	// Theme is a main object, too, and cluster-scoped.
	Theme = "Theme"
	// Palette is controlled by a Theme, and namespaced.
	Palette = "Palette"
	// ConfigMap is a controlled object, if it has an owner.
	ConfigMap = "ConfigMap"
	// Fleet is a main object, which has so many Ships.
	Fleet = "Fleet"
	// Ship is controlled by a Fleet; its name is generated.
	Ship = "Ship"
)

// isMain says whether objects of the kind are main ones.
func isMain(kind string) bool { return kind == Website || kind == Theme || kind == Fleet }

// Version is an object as the API server stored it once.
type Version struct {
	Kind, Namespace, Name, UID string
	// Number is the resourceVersion. Numbers order all versions of one API server.
	Number uint64
	// At is when it was seen, by the machine's monotonic clock: never before it was stored.
	At time.Duration
	// Deleted says that the object was deleted with this version.
	Deleted bool

	// Shard is the value of the shard label, Draining the presence of the drain label.
	Shard    string
	Draining bool
	// Owner is the UID of the controller of a controlled object.
	Owner string
	// Complete says of a main object that the work on its present specification is done.
	Complete bool
	// Replicas is, of a Fleet, how many Ships it shall have.
	Replicas int

	// Holder and Duration are of Leases.
	Holder   string
	Duration time.Duration
}

// String is one line of an excerpt.
func (v Version) String() string {
	text := fmt.Sprintf("%12s  v%-6d %-9s %s", v.At.Round(time.Microsecond*100), v.Number, v.Kind, v.Name)
	if v.Kind == Lease {
		text += fmt.Sprintf(" holder=%q", v.Holder)
	} else {
		text += fmt.Sprintf(" shard=%q", v.Shard)
	}
	if v.Draining {
		text += " draining"
	}
	if v.Deleted {
		text += " deleted"
	}
	return text
}

// Worker is a process that reconciles.
type Worker = history.Worker

// Span is one reconcile of one object. Times are by the machine's monotonic clock.
type Span = history.Span

// Frozen is a time in which a process was stopped from outside and did not know.
type Frozen struct {
	PID         int
	From, Until time.Duration
}

// Run is the records of one run.
type Run struct {
	// Versions are those of the main and controlled objects and of the Leases, in any order.
	Versions []Version
	// GivenUp has, for versions that a shard wrote to give an object up, the shard.
	GivenUp map[uint64]string
	// Spans are the reconciles of all processes; those without an end of their own end with their process.
	Spans  []Span
	Frozen []Frozen
	// Bound is how long an object may be without an available shard while there is one.
	Bound time.Duration
	// End is when objects have no right to a shard any more, for the ring is being deleted. Zero means never.
	End time.Duration
}

// Violation is a promise that was not kept.
type Violation struct {
	// Invariant is the promise: I1, I2, I6, I7 or I9.
	Invariant string
	// Text says what happened.
	Text string
	// Excerpt is what the records say about it, in the order of time.
	Excerpt []string
}

// String returns all of it.
func (v Violation) String() string {
	return v.Invariant + ": " + v.Text + "\n    " + strings.Join(v.Excerpt, "\n    ")
}

// Check returns where the run broke I1, I2, I6 or I9.
func Check(r Run) []Violation {
	r.Versions = slices.Clone(r.Versions)
	slices.SortFunc(r.Versions, func(a, b Version) int { return cmp.Compare(a.Number, b.Number) })
	return slices.Concat(r.overlaps(), r.lateStarts(), r.leavings(), r.unowned(), r.excess())
}

// excerpt returns the versions of some objects and Leases, and the spans of the objects, between two times.
func (r Run) excerpt(from, until time.Duration, uids, shards []string) []string {
	const around = 2 * time.Second
	type line struct {
		at   time.Duration
		text string
	}
	var lines []line
	for _, v := range r.Versions {
		wanted := slices.Contains(uids, v.UID) || v.Kind == Lease && slices.Contains(shards, v.Name)
		if wanted && v.At >= from-around && v.At <= until+around {
			lines = append(lines, line{v.At, v.String()})
		}
	}
	for _, s := range r.Spans {
		if slices.Contains(uids, s.UID) && s.End >= from-around && s.Start <= until+around {
			lines = append(lines, line{s.Start, describe(s)})
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
	const most = 60
	var texts []string
	for _, l := range lines[:min(most, len(lines))] {
		texts = append(texts, l.text)
	}
	return texts
}

// describe is one line of an excerpt.
func describe(s Span) string {
	return fmt.Sprintf("%12s  until %s %s (process %d) reconciles %s %s",
		s.Start.Round(time.Microsecond*100), s.End.Round(time.Microsecond*100), s.Shard, s.PID, s.Kind, s.Name)
}
