package hashring

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
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

// If there are more shards than the index can number, only scores distinguish them. The outcome is the same.
func TestRankingWithoutFavourites(t *testing.T) {
	shards := canonical(numbered(100))
	with, without := newFavourites(shards), newFavourites(shards)
	require.Len(t, with.table, Partitions*favouritesKept)
	without.kept, without.table = 0, nil
	owned := make([]int32, len(shards))

	for _, left := range [][]int32{{}, {7}, {7, 99}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}} {
		for partition := 0; partition < Partitions; partition += 1111 {
			require.Equal(t, without.ownerWithout(left, partition, owned), with.ownerWithout(left, partition, owned),
				"partition %d without %v", partition, left)
		}
	}
	require.Empty(t, newFavourites(numbered(math.MaxUint16+2)).table)
}

func TestRankingIsSafeForConcurrentUse(t *testing.T) {
	r, want := New(numbered(20)), New(numbered(20)).Ranking(77, 5)

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { assert.Equal(t, want, r.Ranking(77, 5)) })
	}
	wg.Wait()
}

func TestOwnersAreFoundWithoutFavourites(t *testing.T) {
	r := New(numbered(50))
	r.Owner(1)
	r.Ranking(1, 1)
	require.Nil(t, r.favourites.made, "a table is made that nobody needs")
	r.Ranking(1, 2)
	require.NotNil(t, r.favourites.made)
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

func TestCacheBuildsASetOnceForAllWhoAskAtOnce(t *testing.T) {
	const callers, sets = 32, 4

	c, builds := countingCache(sets)

	rings := [sets]map[*Table]bool{}
	for i := range rings {
		rings[i] = map[*Table]bool{}
	}

	var (
		mu sync.Mutex
		wg sync.WaitGroup
	)
	for i := range callers {
		wg.Go(func() {
			set := i % sets

			shards := []string{fmt.Sprintf("s-%d", set), "a", "b"}
			if i%2 == 0 {
				shards = []string{"b", "a", "b", fmt.Sprintf("s-%d", set)}
			}

			r := c.Get(shards)
			mu.Lock()
			defer mu.Unlock()

			rings[set][r] = true
		})
	}
	wg.Wait()
	require.EqualValues(t, sets, builds.Load())

	for set := range rings {
		require.Len(t, rings[set], 1, "set %d was given out as different rings", set)
	}
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

func TestCacheLetsOtherSetsPass(t *testing.T) {
	c := NewCache(2)
	building, finish := make(chan struct{}), make(chan struct{})
	c.build = func(shards []string) *Table {
		if shards[0] == "slow" {
			close(building)
			<-finish
		}

		return New(shards)
	}

	done := make(chan *Table)
	go func() { done <- c.Get([]string{"slow"}) }()
	<-building
	require.True(t, c.Get([]string{"fast"}).Has("fast"))
	close(finish)
	require.True(t, (<-done).Has("slow"))
}
