package feed

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPausesGrowToTheirBoundAndAreSpread(t *testing.T) {
	p, same, other := Attempts("one"), Attempts("one"), Attempts("two")

	differ := 0

	for i := range 40 {
		least := min(200*time.Millisecond<<min(i, 20), 30*time.Second)
		d := p.Next()
		require.GreaterOrEqual(t, d, least)
		require.LessOrEqual(t, d, least*6/5)
		require.Equal(t, d, same.Next(), "pauses should be reproducible")

		if other.Next() != d {
			differ++
		}
	}

	require.Greater(t, differ, 30)

	p.Reset()
	require.Less(t, p.Next(), 250*time.Millisecond)
}
