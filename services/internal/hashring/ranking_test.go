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

// In a table of many shards, the bound pushes many partitions on, so favourites alone do not determine the next owner.
// Each place is compared with the table that is built without the shards before it.
func TestRankingIsExactInLargeRings(t *testing.T) {
	const places = 3

	for _, n := range []int{100, 300} {
		r := New(numbered(n))
		for _, partition := range []int{0, Partitions / 2, Partitions - 1000, Partitions - 1} {
			left := r.Shards()
			for place, ranked := range r.Ranking(partition, places) {
				owner, ok := New(left).OwnerOf(partition)
				require.True(t, ok)
				require.Equal(t, owner, ranked, "place %d for partition %d of %d shards", place, partition, n)

				left = slices.DeleteFunc(left, func(shard string) bool { return shard == owner })
			}
			require.Len(t, left, n-places)
		}
	}
}

// countingCache returns a cache that counts how often it builds a table.
func countingCache(size int) (c *Cache, builds *atomic.Int64) {
	builds = new(atomic.Int64)
	c = NewCache(size)
	c.build = func(shards []string) *Table {
		builds.Add(1)
		return New(shards)
	}

	return c, builds
}

// Who asks for a set waits for the one who builds its table, and who asks for another set does not.
func TestCacheBuildsASetOnceForAllWhoAskAtOnce(t *testing.T) {
	building, finish := make(chan struct{}), make(chan struct{})
	c, builds := countingCache(2)
	build := c.build
	c.build = func(shards []string) *Table {
		if slices.Contains(shards, "slow") {
			close(building)
			<-finish
		}

		return build(shards)
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
	c, builds := countingCache(2)
	first := c.Get([]string{"a"})
	c.Get([]string{"b"})
	require.Same(t, first, c.Get([]string{"a"}))
	c.Get([]string{"c"}) // b is the least recently used
	require.EqualValues(t, 3, builds.Load())
	require.Same(t, first, c.Get([]string{"a"}))
	require.EqualValues(t, 3, builds.Load())
	c.Get([]string{"b"})
	require.EqualValues(t, 4, builds.Load())
	require.Equal(t, 2, c.tables.Len())

	c, builds = countingCache(0) // holds one
	require.Same(t, c.Get(nil), c.Get([]string{}))
	require.EqualValues(t, 1, builds.Load())
}
