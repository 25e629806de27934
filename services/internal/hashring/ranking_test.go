package hashring

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

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
