package takeover

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/services/internal/membership"
)

// A shard beyond the limit of a ring is not available, but it may have objects from the time before. It gives them up itself.
func TestShardBeyondTheLimitKeepsItsObjects(t *testing.T) {
	w := newWorld(t)
	a := w.shard()
	require.NoError(t, a.Acquire(t.Context()))

	var list coordinationv1.LeaseList
	require.NoError(t, w.plane.Client.List(t.Context(), &list, client.InNamespace(w.ns)))
	require.Len(t, list.Items, 1)

	leases := []*coordinationv1.Lease{&list.Items[0]}

	for i := range membership.MaxShards {
		older := list.Items[0].DeepCopy()
		older.Name = fmt.Sprintf("older-%d", i)
		older.Spec.HolderIdentity = &older.Name
		older.CreationTimestamp.Time = older.CreationTimestamp.Add(-time.Hour)
		leases = append(leases, older)
	}

	view := membership.Rules{Namespaces: w.from}.View(w.ring, leases, nil)
	require.False(t, view.Available("a"))
	require.Empty(t, w.guard.Observe(view), "it has not released its Lease")
	require.False(t, w.ask("a").Allowed)
	w.step(longestWait + time.Minute)
	w.guard.Observe(view)
	require.False(t, w.ask("a").Allowed)
}

// The Leases of a ring may be so large that what a read of all shards allows is over when it ends.
func TestShardsAreReadOneByOneWhileTheReadOfAllIsSlow(t *testing.T) {
	w := newWorld(t)
	late := &lateReader{Reader: w.plane.Client, late: func() { w.step(silentHoldOff) }}
	w.guard = New(w.ring, late, w.clock)

	names := w.many(2*few, 0)

	w.observe()

	for range 4 {
		for _, name := range names {
			w.ask(name)
		}
	}

	require.Equal(t, tooLate, late.all, "after that, each shard by itself")

	for _, name := range names {
		require.True(t, w.ask(name).Allowed, name)
	}

	w.step(slowly)

	for range 2 {
		for _, name := range names {
			w.ask(name)
		}
	}

	require.Equal(t, tooLate+1, late.all, "another attempt to read all")
}

// When a third of a thousand shards has died, a busy API server takes long to list all Leases. If each shard were then read by itself, the API
// server would scan a thousand Leases hundreds of times per second, and become slower and slower.
func TestSlowReadsOfAllShardsServeForLonger(t *testing.T) {
	w := newWorld(t)
	counted := &countingReader{Reader: w.plane.Client}
	late := &lateReader{Reader: counted, late: func() { w.step(2 * trust) }}
	w.guard = New(w.ring, late, w.clock)

	names := w.dead(2 * few)

	w.observe()

	reads := func() int {
		t.Helper()

		before := counted.lists

		for _, name := range names {
			require.True(t, w.ask(name).Allowed, name)
		}

		return counted.lists - before
	}

	require.Equal(t, few+1, reads(), "a few by themselves, the others together")

	w.step(2*trust - 1)
	require.Zero(t, reads(), "the answer is good for twice as long as the read took")
	w.step(1)
	require.Equal(t, 1, reads(), "and then renewed for all together")
	require.Equal(t, 2, late.all)
}

// dead creates the Leases of n shards, which have been taken, and returns their names.
func (w *world) dead(n int) (names []string) {
	w.Helper()

	for i := range n {
		s := w.shard()
		s.Name = fmt.Sprintf("dead-%d", i)
		names = append(names, s.Name)

		require.NoError(w, s.Acquire(w.Context()))
		w.says(s, "10s")
		w.take(s)
	}

	return names
}

// A read of all shards may take so long that it fails, or that only those can use it who have waited for it.
func TestReadsOfAllShardsThatTakeTooLongAreGivenUp(t *testing.T) {
	for name, err := range map[string]error{"they end": nil, "they fail": context.DeadlineExceeded} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			late := &lateReader{Reader: w.plane.Client, late: func() { w.step(longestTrust) }, err: err}
			w.guard = New(w.ring, late, w.clock)

			names := w.dead(2 * few)

			w.observe()

			for range 2 * tooLate {
				for _, name := range names {
					if _, got := w.guard.MayTake(t.Context(), name); got != nil {
						require.ErrorIs(t, got, err)
					}
				}
			}

			require.Equal(t, tooLate, late.all, "after that, each shard by itself")
		})
	}
}

// Whoever has waited for a read can use what it allows, even if it is too old for those who ask later.
func TestShardsAreReadTogetherAsLongAsThatAllowsSomething(t *testing.T) {
	w := newWorld(t)
	late := &lateReader{Reader: w.plane.Client, late: func() { w.step(silentHoldOff - 1) }}
	w.guard = New(w.ring, late, w.clock)

	names := w.many(2*few, 0)

	w.observe()

	const rounds = 2 * tooLate

	for range rounds {
		for _, name := range names {
			require.True(t, w.ask(name).Allowed, name)
		}
	}

	require.GreaterOrEqual(t, late.all, rounds)
}

func TestAnswerOfASlowReadIsUsedForSecondsOnly(t *testing.T) {
	begins := time.Unix(1_000_000_000, 0)
	for took, want := range map[time.Duration]time.Duration{
		0: trust, trust / atRead: trust, trust: 4 * trust, time.Minute: 5 * time.Second,
	} {
		require.Equal(t, want, span{begins, begins.Add(took)}.trusted(), took)
	}
}
