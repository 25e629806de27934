package scaleout

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/load/internal/crew"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
)

func TestSides(t *testing.T) {
	require.Equal(t, []string{Services, Static}, sides(Services, 0))
	require.Equal(t, []string{Static, Services}, sides(Services, 1), "in turns")
	require.Equal(t, []string{Static}, sides(Static, 1))
	require.Equal(t, []string{Embedded}, sides(Embedded, 1))
}

func TestStrikes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // no secret
	regular := trouble{every: 5 * time.Minute, strike: (*fleet).kill}
	require.Equal(t, []time.Duration{5 * time.Minute, 10 * time.Minute},
		slices.Collect(regular.strikes(rng, 15*time.Minute)))

	byChance := trouble{every: time.Minute, byChance: true, strike: (*fleet).kill}
	require.InDelta(t, 1000, len(slices.Collect(byChance.strikes(rng, 1000*time.Minute))), 100)

	require.Empty(t, slices.Collect(trouble{}.strikes(rng, time.Hour)), "nothing happens")

	backToBack := 0

	for at := range (trouble{strike: (*fleet).roll}).strikes(rng, time.Hour) {
		require.Zero(t, at)

		if backToBack++; backToBack > 10 {
			break
		}
	}
}

func TestHotObjects(t *testing.T) {
	f := &fleet{Crew: &crew.Crew{Sites: objects.Batch{Count: 1000}}}
	hot := 0

	const n = 100_000
	for range n {
		if f.hot() < 50 {
			hot++
		}
	}

	require.InDelta(t, 10.0/29, float64(hot)/n, 0.01, "50 objects with ten times as many changes as 950 others")
}

func TestLinesAreMultiplesOfTheirFirstPoint(t *testing.T) {
	l := divided("l", result.Line{Points: []result.XY{{X: 1, Y: 4}, {X: 3, Y: 6, Hollow: true}}})
	require.Equal(t, result.Line{Name: "l", Points: []result.XY{{X: 1, Y: 1}, {X: 3, Y: 1.5, Hollow: true}}}, l)

	nothing := result.Line{Points: []result.XY{{X: 1}, {X: 3, Y: 6}}}
	require.Empty(t, divided("l", nothing).Points, "one shard carries nothing")
}
