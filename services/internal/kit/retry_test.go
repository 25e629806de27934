package kit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/services/internal/kit"
)

func TestRetriesAreCappedAndSpreadOut(t *testing.T) {
	limiter := kit.RateLimiter[string]()
	require.LessOrEqual(t, limiter.When("a"), 5*time.Millisecond)

	for failing := time.Duration(0); failing < 10*time.Minute; {
		failing += limiter.When("a")
	}

	pauses := map[time.Duration]bool{}

	for range 10 {
		pause := limiter.When("a")
		require.LessOrEqual(t, pause, 30*time.Second)
		require.GreaterOrEqual(t, pause, 24*time.Second)
		pauses[pause] = true
	}
	require.Greater(t, len(pauses), 1, "what failed together is tried together")

	limiter.Forget("a")
	require.LessOrEqual(t, limiter.When("a"), 5*time.Millisecond)
}
