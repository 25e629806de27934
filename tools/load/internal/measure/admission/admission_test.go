package admission

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Turns of a round count by their median.
func TestTogether(t *testing.T) {
	require.Empty(t, together(nil, 3))

	var turns []creation
	for i := range 7 {
		turns = append(turns, creation{rate: float64(i), server: float64(10 * i)})
	}
	require.Equal(t, []creation{{1, 10}, {4, 40}, {6, 60}}, together(turns, 3))
}
