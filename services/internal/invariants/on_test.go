//go:build invariants

package invariants

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The more there is, the less often it is checked.
func TestPace(t *testing.T) {
	for parts, want := range map[int]int{0: 1000, unpaced: 1000, 10 * unpaced: 100, 1000 * unpaced: 1} {
		var p Pace

		checked := 0

		for range 1000 {
			if p.Due(parts) {
				checked++
			}
		}

		require.Equal(t, want, checked, "of %d parts", parts)
	}
}

func TestViolated(t *testing.T) {
	require.PanicsWithValue(t, "invariant violated: 2 is not 3", func() { Violated("%d is not %d", 2, 3) })
}
