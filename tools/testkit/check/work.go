package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/clusterring/clusterring/tools/testkit/history"
)

// units maps the UID of each object to the UID of its main object: itself or its owner.
func (r Run) units() map[string]string {
	units := map[string]string{}
	for _, v := range r.Versions {
		units[v.UID] = cmp.Or(v.Owner, v.UID)
	}

	return units
}

// overlaps finds two processes that worked on one unit at the same time.
func (r Run) overlaps() []Violation {
	units := r.units()

	var found []Violation

	for _, o := range history.Overlaps(r.Spans, func(s Span) string { return cmp.Or(units[s.UID], s.UID) }) {
		if !r.excused(o.First, o.Second.Start) && !r.excused(o.Second, o.First.Start) {
			found = append(found, r.overlap(o.First, o.Second))
		}
	}

	return found
}

func (r Run) overlap(a, b Span) Violation {
	return Violation{
		Invariant: "I1",
		Text: fmt.Sprintf("%s (process %d) and %s (process %d) worked on %s %s and %s %s at the same time, from %s to %s",
			a.Shard, a.PID, b.Shard, b.PID, a.Kind, a.Name, b.Kind, b.Name, b.Start, min(a.End, b.End)),
		Excerpt: r.excerpt(b.Start, min(a.End, b.End), []string{a.UID, b.UID}, []string{a.Shard, b.Shard}),
	}
}

// excused reports whether the process was frozen during the span before the other span began.
func (r Run) excused(s Span, other time.Duration) bool {
	return slices.ContainsFunc(r.Frozen, func(f Frozen) bool {
		return f.PID == s.PID && s.Start <= f.From && f.From < s.End && f.From <= other
	})
}

// lateStarts finds reconciles that began after the Lease of their process was seen with another holder.
func (r Run) lateStarts() []Violation {
	lost := map[string][]Version{}
	held := map[string]bool{}

	for _, v := range r.Versions {
		if v.Kind != Lease {
			continue
		}

		holds := v.Holder == v.Name && !v.Deleted
		// A deletion proves nothing about the process, unlike another holder.
		if held[v.Name] && !holds && !v.Deleted {
			lost[v.Name] = append(lost[v.Name], v)
		}

		held[v.Name] = holds
	}

	first := map[Worker]time.Duration{}
	for _, s := range r.Spans {
		if known, ok := first[s.Worker]; !ok || s.Start < known {
			first[s.Worker] = s.Start
		}
	}

	var found []Violation

	for _, s := range r.Spans {
		for _, v := range lost[s.Shard] {
			if first[s.Worker] < v.At && v.At < s.Start {
				found = append(found, Violation{
					Invariant: "I1",
					Text: fmt.Sprintf("%s (process %d) began to work on %s %s at %s, though its Lease was %q's since %s at the latest",
						s.Shard, s.PID, s.Kind, s.Name, s.Start, v.Holder, v.At),
					Excerpt: r.excerpt(v.At, s.Start, []string{s.UID}, []string{s.Shard}),
				})

				break
			}
		}
	}

	return found
}
