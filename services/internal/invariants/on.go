//go:build invariants

package invariants

// Enabled reports whether types check their invariants.
const Enabled = true

// Pace spaces out the checks of a state whose check takes longer the more there is, so that a change does not cost more
// and more. The zero value is ready to use.
type Pace struct{ changes int }

// unpaced is up to how many parts a state is checked after each change.
const unpaced = 64

// Due reports whether the state, which has just changed and has so many parts, is to be checked now.
func (p *Pace) Due(parts int) bool {
	if p.changes++; p.changes < parts/unpaced {
		return false
	}

	p.changes = 0

	return true
}
