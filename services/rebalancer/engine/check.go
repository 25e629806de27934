package engine

import (
	"github.com/clusterring/clusterring/services/internal/invariants"
)

// check panics if an invariant of the engine does not hold. The lock must be held.
func (s *state) check() {
	if !s.pace.Due(len(s.families.byUID) + s.families.members) {
		return
	}

	if s.passes.verified && s.passes.extent.any() {
		invariants.Violated("1: everything was seen in its place, and a pass has to look for what is not")
	}

	if at, ok := s.table.Next(); ok && (s.armed.IsZero() || s.armed.After(at)) {
		invariants.Violated("2: something is due at %s, and is looked at at %s", at, s.armed)
	}

	s.families.check()
}

// check verifies invariant 3.
func (all *families) check() {
	members := 0

	for uid, f := range all.byUID {
		members += len(f.members)

		if all.byName[f.owner] != uid {
			invariants.Violated("3: %s is known by UID %s, and by name as UID %q", f.owner, uid, all.byName[f.owner])
		}
	}

	if len(all.byName) != len(all.byUID) || members != all.members || members > maxMembers {
		invariants.Violated("3: %d families have %d members, and %d names and %d members are known",
			len(all.byUID), members, len(all.byName), all.members)
	}
}
