package admission

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Turns of a round count by their median.
func TestTogether(t *testing.T) {
	require.Empty(t, together(nil, 3))

	require.Equal(t, []float64{1, 4, 6}, together([]float64{0, 1, 2, 5, 4, 3, 6}, 3))
}
