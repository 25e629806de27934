package hashring

import (
	"math"
	"slices"
	"sync"
)

// favouritesKept is how many shards each partition remembers. With 4, in tables of hundreds of shards, all of them are at their
// bound for fewer than one partition in a hundred; in smaller tables, for hardly any.
const favouritesKept = 4

// Ranking returns at most n different shards: the owner of the partition, then the one that would own it if the owner left,
// then the one that would own it if both had left, and so on. Each place is exactly the owner in the table without the
// shards before it. A partition that does not exist has no ranking.
//
// The first place is a lookup. Each further place reassigns the partitions up to the given one, which takes tens of microseconds
// for any number of shards. The first call that needs it builds an index of 128 KiB, in the time of a [New], which the table
// keeps.
func (t *Table) Ranking(partition, n int) []string {
	if partition < 0 || partition >= len(t.owners) || n <= 0 {
		return nil
	}

	ranking := make([]string, 1, min(n, len(t.shards)))
	owner := t.owners[partition]

	ranking[0] = t.shards[owner]
	if cap(ranking) == 1 {
		return ranking
	}

	f := t.favourites.of(t.shards)
	left := make([]int32, 0, cap(ranking))

	owned := make([]int32, len(t.shards))
	for len(ranking) < cap(ranking) {
		left = append(left, owner)
		owner = f.ownerWithout(left, partition, owned)
		ranking = append(ranking, t.shards[owner])
	}

	return ranking
}

// lazyFavourites are built on first use, because few tables are asked for a ranking. The zero value is ready to use.
type lazyFavourites struct {
	once sync.Once
	made *favourites
}

// of returns the favourites among the given shards, which are the same in each call.
func (l *lazyFavourites) of(shards []string) *favourites {
	l.once.Do(func() { l.made = newFavourites(shards) })
	return l.made
}

// favourites are, for each partition, the few shards that it prefers to all others, the best first. Preferences do not depend on
// which shards have left; only the owner does. Therefore, they serve every subset of a set of shards.
type favourites struct {
	seeds []uint64 // by index of the shard
	kept  int      // per partition
	table []uint16 // kept indexes of shards for partition 0, then for partition 1, and so on
}

// newFavourites builds the index for all partitions. If indexes do not fit into it, it is empty: partitions then have no
// favourites, and every owner is found by comparing scores.
func newFavourites(shards []string) *favourites {
	f := &favourites{seeds: make([]uint64, len(shards))}
	for i, shard := range shards {
		f.seeds[i] = seedOf(shard)
	}

	if len(shards) > math.MaxUint16+1 {
		return f
	}

	f.kept = min(favouritesKept, len(shards))

	f.table = make([]uint16, 0, Partitions*f.kept)
	for t := range Partitions {
		f.table = f.appendBest(f.table, partitionSeed(t))
	}

	return f
}

// appendBest appends the favourites of one partition. Of equal scores, the shard with the lowest name comes first, as in assign.
func (f *favourites) appendBest(table []uint16, partition uint64) []uint16 {
	var (
		best   [favouritesKept]uint16
		scores [favouritesKept]uint64
	)

	n := 0

	for i, seed := range f.seeds {
		s := score(seed, partition)
		if n == f.kept && s <= scores[n-1] {
			continue
		}

		if n < f.kept {
			n++
		}

		at := n - 1
		for ; at > 0 && s > scores[at-1]; at-- {
			best[at], scores[at] = best[at-1], scores[at-1]
		}

		best[at], scores[at] = uint16(i), s
	}

	return append(table, best[:n]...)
}

// ownerWithout returns the shard that owns the partition after the given shards have left; at least one shard remains. It works
// like assign. The counters are scratch space: one per shard, with any content.
func (f *favourites) ownerWithout(left []int32, partition int, owned []int32) (owner int32) {
	limit := bound(len(owned) - len(left))
	clear(owned)

	for _, i := range left {
		owned[i] = limit // a full shard gets nothing
	}

	for t := range partition + 1 {
		row := f.table[t*f.kept : (t+1)*f.kept]

		at := slices.IndexFunc(row, func(i uint16) bool { return owned[i] < limit })
		if at >= 0 {
			owner = int32(row[at])
		} else {
			owner = f.bestBelow(limit, owned, partitionSeed(t))
		}
		owned[owner]++
	}

	return owner
}

// bestBelow returns the shard with the highest score for the partition among those that own less than the limit.
func (f *favourites) bestBelow(limit int32, owned []int32, partition uint64) int32 {
	best, highest := int32(-1), uint64(0)

	for i, seed := range f.seeds {
		if owned[i] >= limit {
			continue
		}

		if s := score(seed, partition); best < 0 || s > highest {
			best, highest = int32(i), s
		}
	}

	return best
}
