package balance

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFullest(t *testing.T) {
	require.InDelta(t, 1, fullest([]int32{5, 5, 5}), 1e-9)
	require.InDelta(t, 1.5, fullest([]int32{1, 2, 3}), 1e-9)
}
