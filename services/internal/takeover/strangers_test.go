package takeover

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Users may label objects with names that no shard ever had, as many as they like.
func TestMadeUpNamesAreForgotten(t *testing.T) {
	w := newWorld(t)
	a := w.released()

	w.observe()
	w.step(30 * time.Second)

	for i := range 3 * manyStrangers {
		require.True(t, w.ask(fmt.Sprint("made-up-", i)).Allowed)
		require.LessOrEqual(t, len(w.guard.shards), manyStrangers+1)
	}

	require.Contains(t, w.guard.shards, a.Name, "it has a Lease")
	require.NoError(t, a.Acquire(t.Context()))
	w.observe()
	require.NoError(t, a.Delete(t.Context()))
	w.step(time.Second)
	require.False(t, w.ask(a.Name).Allowed)
}

// A query is answered even if its name is forgotten while it waits.
func TestNameThatIsForgottenMeanwhileIsAnswered(t *testing.T) {
	w := newWorld(t)
	w.step(time.Minute)

	for i := range few + 1 {
		w.ask(fmt.Sprint("stranger-", i))
	}

	q := w.guard.ask("forgotten")
	require.True(t, q.many)
	delete(w.guard.shards, "forgotten")

	v, err := w.guard.readAll(t.Context(), q)
	require.NoError(t, err)
	require.True(t, v.Allowed)
}
