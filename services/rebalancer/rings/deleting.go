package rings

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/clusterring/clusterring/services/rebalancer/engine"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// A message about a ring names at most so many resources, shards, and failures, each failure in at most so many bytes.
const (
	maxNamed   = 3
	maxFailure = 500
)

// deleting returns what a ring that is being deleted waits for: what is left, and then what somebody has to act on. Its
// length is limited.
func deleting(s situation, waits []clause) string {
	all := []string{"the ring is being deleted: " + left(s.report)}

	if asked := s.report.Asked; len(asked) > 0 {
		all = append(all, "shards were asked to release "+named(asked, " at shard ")+
			", and do so when they have finished their work on them")
	}

	for _, c := range waits {
		all = append(all, cmp.Or(c.ending, c.text))
	}

	return strings.Join(all, "; ")
}

// left returns how many objects have labels of a ring that is being deleted, as far as is known.
func left(r engine.Report) string {
	switch n := r.Unassigned + r.Misplaced + r.Draining; {
	case n > 0:
		return fmt.Sprintf("objects with its labels, as far as is known: %d (%s)", n, named(r.Resources, " "))
	case r.Converged:
		return "no object that can be read has its labels"
	}

	return "it looks for objects that have its labels"
}

// named returns the largest shares, and how much the others have together.
func named(shares []work.Share, of string) string {
	var (
		all    []string
		others int
	)

	for i, s := range shares {
		if i < maxNamed {
			all = append(all, fmt.Sprint(s.N)+of+s.Of)
		} else {
			others += s.N
		}
	}

	if others > 0 {
		all = append(all, fmt.Sprintf("and %d more", others))
	}

	return strings.Join(all, ", ")
}

func failures(all []string) string {
	var text []string
	for _, f := range all[:min(len(all), maxNamed)] {
		text = append(text, clip(f))
	}

	if n := len(all) - maxNamed; n > 0 {
		text = append(text, fmt.Sprintf("and %d more failures", n))
	}

	return strings.Join(text, "; ")
}

// clip shortens a text of somebody else.
func clip(text string) string {
	if len(text) <= maxFailure {
		return text
	}

	return strings.ToValidUTF8(text[:maxFailure], "") + "..."
}

// stuck returns the kinds of problems that keep a deleted ring, in a text that does not change while objects move; empty if
// there are none. grave reports whether the ring will wait until somebody acts.
func stuck(s situation) (grave bool, why string) {
	kinds := slices.Clone(s.report.Failures)

	if s.unknown != "" { // a resource that is not served will soon be known to be gone
		kinds = append(kinds, s.unknown)
	}

	if s.report.Late > 0 {
		kinds = append(kinds, "late")
	}

	if refused(s.report.BlockedExample) {
		kinds = append(kinds, "refused")
	}

	if grave = len(kinds) > 0; !grave && s.report.Draining > 0 {
		kinds = append(kinds, "draining")
	}

	return grave, strings.Join(kinds, "\n")
}
