package hashring

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func numbered(n int) []string {
	shards := make([]string, n)
	for i := range shards {
		shards[i] = fmt.Sprintf("shard-%d", i)
	}

	return shards
}

// Each place is the owner in the table without the shards before it. In a table of many shards, the bound pushes many
// partitions on, so favourites alone do not determine the next owner.
func TestRankingIsExact(t *testing.T) {
	for _, n := range []int{1, 3, 40, 100, 300} {
		r := New(numbered(n))
		for _, partition := range []int{0, Partitions / 2, Partitions - 1000, Partitions - 1} {
			left, ranking := r.Shards(), r.Ranking(partition, 4)
			require.Len(t, ranking, min(n, 4))

			for place, ranked := range ranking {
				owner, ok := New(left).OwnerOf(partition)
				require.True(t, ok)
				require.Equal(t, owner, ranked, "place %d for partition %d of %d shards", place, partition, n)

				left = slices.DeleteFunc(left, func(shard string) bool { return shard == owner })
			}
		}
	}
}

// Who asks for a set waits for the one who builds its table, and who asks for another set does not.
func TestCacheBuildsASetOnceForAllWhoAskAtOnce(t *testing.T) {
	building, finish := make(chan struct{}), make(chan struct{})
	c, builds := NewCache(2), &atomic.Int64{}
	c.build = func(shards []string) *Table {
		builds.Add(1)

		if slices.Contains(shards, "slow") {
			close(building)
			<-finish
		}

		return New(shards)
	}

	const callers = 8

	tables := make(chan *Table, callers)
	for i := range callers {
		go func() { tables <- c.Get([][]string{{"slow", "a"}, {"a", "slow", "a"}}[i%2]) }()
	}

	<-building
	require.True(t, c.Get([]string{"fast"}).Has("fast"))
	close(finish)

	first := <-tables
	for range callers - 1 {
		require.Same(t, first, <-tables)
	}

	require.EqualValues(t, 2, builds.Load())
}

func TestCacheKeepsTheSetsAskedForMostRecently(t *testing.T) {
	c := NewCache(2)
	first, second := c.Get([]string{"a"}), c.Get([]string{"b"})
	require.Same(t, first, c.Get([]string{"a"}))
	c.Get([]string{"c"}) // b is the least recently used
	require.Same(t, first, c.Get([]string{"a"}))
	require.NotSame(t, second, c.Get([]string{"b"}))
	require.Equal(t, 2, c.tables.Len())

	c = NewCache(0) // holds one
	require.Same(t, c.Get(nil), c.Get([]string{}))
}
