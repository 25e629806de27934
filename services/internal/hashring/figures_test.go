package hashring_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/services/internal/hashring"
)

// figures are averages over many sets of names.
type figures struct {
	balance float64 // partitions of the fullest shard, divided by the mean
	leave   float64 // partitions that change their owner when a shard leaves, divided by those it owned
	join    float64 // partitions that change their owner when a shard joins, divided by those it owns then
}

func measure(t *testing.T, shards, sets int) (average figures) {
	t.Helper()

	random := rand.New(rand.NewPCG(uint64(shards), 1))
	for range sets {
		members := randomNames(random, shards+1)
		joiner, members := members[random.IntN(len(members))], members
		with := hashring.New(members)
		without := hashring.New(remove(members, joiner))
		leaver := without.Shards()[random.IntN(shards)]

		fullest := 0
		for _, shard := range without.Shards() {
			fullest = max(fullest, without.PartitionsOf(shard))
		}

		average.balance += float64(fullest) * float64(shards) / hashring.Partitions
		average.join += moved(t, without, with) / float64(with.PartitionsOf(joiner))
		average.leave += moved(t, without, hashring.New(remove(without.Shards(), leaver))) / float64(without.PartitionsOf(leaver))
	}

	average.balance /= float64(sets)
	average.leave /= float64(sets)
	average.join /= float64(sets)

	return average
}

// moved returns how many partitions have different owners.
func moved(t *testing.T, a, b *hashring.Table) (n float64) {
	t.Helper()

	before, after := table(t, a), table(t, b)
	for partition := range before {
		if before[partition] != after[partition] {
			n++
		}
	}

	return n
}

func remove(shards []string, shard string) []string {
	var others []string

	for _, s := range shards {
		if s != shard {
			others = append(others, s)
		}
	}

	return others
}

func TestBalanceAndMovement(t *testing.T) {
	const sets = 100
	for _, tc := range []struct {
		shards         int
		balance, moved float64
	}{
		{3, 1.01, 1.00},
		{10, 1.04, 1.00},
		{50, 1.05, 1.065},
	} {
		got := measure(t, tc.shards, sets)
		t.Logf("%d shards, %d sets of names: balance %.4f, moved on leave %.4f and on join %.4f",
			tc.shards, sets, got.balance, got.leave, got.join)
		require.InDelta(t, tc.balance, got.balance, 0.006, "balance with %d shards", tc.shards)
		require.InDelta(t, tc.moved, got.leave, 0.016, "moved on a leave from %d shards", tc.shards)
		require.InDelta(t, tc.moved, got.join, 0.016, "moved on a join to %d shards", tc.shards)
	}
}

func TestLookUpAllocatesNothing(t *testing.T) {
	r := hashring.New([]string{"a", "b", "c"})
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = r.Owner(12345) }))
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = r.Has("b") }))
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = r.PartitionsOf("b") }))
}
