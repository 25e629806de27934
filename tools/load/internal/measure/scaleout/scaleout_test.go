package scaleout

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/load/internal/capacity"
)

func TestSides(t *testing.T) {
	require.Equal(t, []string{Services, Static}, sides(Services, 0))
	require.Equal(t, []string{Static, Services}, sides(Services, 1), "in turns")
	require.Equal(t, []string{Static}, sides(Static, 1))
	require.Equal(t, []string{Embedded}, sides(Embedded, 1))
}

func TestWhatDoesNotCount(t *testing.T) {
	good := capacity.Offered{Asked: 2, Took: make([]time.Duration, 2)}
	require.Empty(t, invalid([]capacity.Offered{good}, 0, 0))

	late := good
	late.Lag = time.Second
	require.Equal(t, []string{"changes began up to 1s late"}, invalid([]capacity.Offered{good, late}, 0, 0))
	require.Len(t, invalid(nil, 1000, 1), 2, "the machine was busy, and requests were refused")
}
