// Package invariants reports whether types check their invariants, which the build tag "invariants" turns on.
//
// A type with state numbers its invariants in its doc, and has a method check that panics if one does not hold. What
// changes the state calls it:
//
//	if invariants.Enabled {
//		defer t.check()
//	}
//
// Without the tag, this costs nothing. `make test` sets the tag.
package invariants

import "fmt"

// Violated panics with the message. It is for methods that check.
func Violated(format string, args ...any) {
	panic("invariant violated: " + fmt.Sprintf(format, args...))
}
