// Package check decides from the records of a run whether sharding kept its guarantees.
//
// Its input is what the API server stored (versions of objects and Leases), the versions by which shards released objects, and the
// reconciles that shards recorded. Its output is a list of [Violation]s. It is pure: the same records give the same result, so a failed run
// can be checked again.
//
// The invariants, by the numbers of docs/guarantees.md:
//
//	I1  At most one process at a time works on a main object and on the objects that it controls. No process begins a reconcile
//	    after its Lease was seen with another holder.
//	I2  While a shard is available, an object is without an available shard for a bounded time only.
//	I6  While a shard holds its Lease, a main object leaves it only by the shard's own write, after a drain; a controlled
//	    object leaves it only after its owner. A deleted Lease counts as held for twice its duration.
//	I7  At the end, all objects are in place: see [Final].
//	I9  A Fleet never has more Ships than its spec demands: nothing deletes Ships, and none is created twice.
//
// There is one documented exception: a process that was frozen may finish the reconciles that it had begun before.
package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/clusterring/clusterring/tools/testkit/history"
)

// The values of [Version.Kind].
const (
	// Lease is the Lease of a shard. It has the name of the shard.
	Lease = "Lease"
	// Website is a main object.
	Website = "Website"
	// Theme is a cluster-scoped main object.
	Theme = "Theme"
	// Palette is a namespaced object that a Theme controls.
	Palette = "Palette"
	// ConfigMap is a controlled object, if it has an owner.
	ConfigMap = "ConfigMap"
	// Fleet is a main object with a number of Ships.
	Fleet = "Fleet"
	// Ship is an object with a generated name that a Fleet controls.
	Ship = "Ship"
)

// isMain reports whether objects of the kind are main objects.
func isMain(kind string) bool { return kind == Website || kind == Theme || kind == Fleet }

// Version is one stored version of an object.
type Version struct {
	Kind, Namespace, Name, UID string
	// Number is the resourceVersion. Numbers order all versions of one API server.
	Number uint64
	// At is when the watch reported it, by the machine's monotonic clock.
	At time.Duration
	// Deleted is true if this version is the deletion of the object.
	Deleted bool

	// Shard is the value of the shard label, Draining the presence of the drain label.
	Shard    string
	Draining bool
	// Owner is the UID of the controller of a controlled object.
	Owner string
	// Complete is true if the work on the current spec of a main object is done.
	Complete bool
	// Replicas is the desired number of Ships of a Fleet.
	Replicas int

	// Holder, Duration, and State, which the lease monitor writes, are of Leases.
	Holder   string
	Duration time.Duration
	State    string
	// Renewed is the last renewal of a Lease in this version or in a later one that differs in nothing else, by the holder's clock.
	Renewed time.Time
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

// Frozen is a period in which a process was frozen.
type Frozen struct {
	PID         int
	From, Until time.Duration
}

// Run contains the records of one run.
type Run struct {
	// Versions are those of the main and controlled objects and of the Leases, in any order.
	Versions []Version
	// GivenUp maps the versions by which shards released objects to these shards.
	GivenUp map[uint64]string
	// Spans are the reconciles of all processes. Interrupted reconciles end with their process.
	Spans  []Span
	Frozen []Frozen
	// Bound limits the time that an object is without an available shard while a shard is available.
	Bound time.Duration
	// End is when the deletion of the ring begins, after which objects need no shard. Zero means never.
	End time.Duration
}

// Violation is a violated guarantee.
type Violation struct {
	// Invariant is I1, I2, I6, I7, or I9.
	Invariant string
	// Text describes what happened.
	Text string
	// Excerpt contains the related records in chronological order.
	Excerpt []string
}

// String returns all of it.
func (v Violation) String() string {
	return v.Invariant + ": " + v.Text + "\n    " + strings.Join(v.Excerpt, "\n    ")
}

// Check returns the violations of I1, I2, I6, and I9.
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
