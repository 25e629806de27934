package engine

import (
	"github.com/clusterring/clusterring/services/internal/invariants"
)

// check panics if an invariant of the engine does not hold. The lock must be held.
func (s *state) check() {
	for _, l := range s.passes.looks {
		if l.verified && l.extent.any() {
			invariants.Violated("1: %s is verified, but a pass has to look for misplaced objects", l.resource.GroupResource())
		}
	}

	if at, ok := s.table.Next(); ok && (s.armed.IsZero() || s.armed.After(at)) {
		invariants.Violated("2: an obligation is due at %s, but the table is checked at %s", at, s.armed)
	}
}
