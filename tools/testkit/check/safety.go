package check

import (
	"cmp"
	"slices"

	"github.com/clusterring/clusterring/tools/testkit/history"
)

// Safety returns the violations of I1, I6, and I9: of all invariants that do not depend on the speed of the machine. It makes no exception
// for frozen processes: a reconcile must not continue after the freeze while others work. If [Run.GivenUp] is nil, each release of a
// draining object counts as a write of its shard.
func Safety(r Run) []Violation {
	r.Versions = slices.Clone(r.Versions)
	slices.SortFunc(r.Versions, func(a, b Version) int { return cmp.Compare(a.Number, b.Number) })

	if r.GivenUp == nil {
		r.GivenUp = Releases(r.Versions)
	}

	working := r
	working.Frozen = nil

	for _, f := range r.Frozen {
		working.Spans = history.Without(working.Spans, history.Pause(f))
	}

	return slices.Concat(working.overlaps(), r.lateStarts(), r.leavings(), r.excess())
}

// Releases maps the versions in which draining objects left their shard to these shards. The versions must be in order.
func Releases(versions []Version) map[uint64]string {
	newest, released := map[string]Version{}, map[uint64]string{}

	for _, v := range versions {
		if before := newest[v.UID]; before.Draining && before.Shard != v.Shard {
			released[v.Number] = before.Shard
		}

		newest[v.UID] = v
	}

	return released
}
