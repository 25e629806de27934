// Package hashring determines which shard owns which part of the hash space, from the names of the shards alone.
package hashring

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"
	"sync"

	"k8s.io/utils/lru"

	"github.com/clusterring/clusterring/services/internal/key"
)

// Partitions is the number of equal parts of the hash space (Q in the literature).
const Partitions = 1 << partitionBits

const (
	partitionBits = 14
	hashBits      = 31

	// algorithm identifies the rules that assign partitions to owners. Any change of an owner requires a change of this
	// name, so that replicas of both versions detect from the fingerprint that they disagree.
	algorithm = "clusterring ring v2"
	// scores identifies the rule that scores shards. It is older than the bound: most partitions keep their owner when a
	// new version changes another rule.
	scores = "clusterring ring v1"

	// A shard owns at most boundPermille/1000 of the mean, rounded up. Up to 50 shards, that is less than 1.05 times the
	// mean; 1050 would be just above.
	boundPermille = 1049
)

// Table is an immutable table of partitions and the shards that own them. It may be used by any number of goroutines.
// The zero value is a table without shards and without a fingerprint.
//
// # Invariants
//
//  1. The table is a function of the set of names: it does not depend on order, duplicates, or earlier tables. All who
//     know the same shards agree without communication.
//  2. If there is a shard, every partition has exactly one owner, which is one of the shards.
//  3. No shard owns more than ceil(1.049 * Partitions / shards) partitions.
//  4. A shard that joins takes its share from all shards, and a shard that leaves gives its share to all. Other
//     partitions keep their owner, except for the few that invariant 3 pushes on.
//  5. Different sets have different fingerprints, as far as 64 bits of SHA-256 can tell.
//
// # How it is built
//
//  1. Each name and each partition gets a 64-bit seed. The two seeds, mixed, are the score of the shard for the
//     partition. Therefore, every partition has its own random order of preference among the shards (rendezvous
//     hashing, Thaler and Ravishankar 1998).
//  2. The partitions are assigned in ascending order. Each goes to the shard with the highest score among the shards
//     that are still below the bound of invariant 3.
//
// The upper 14 bits of the 31-bit hash of an object's key are its partition.
//
// # A worked example
//
// For the shards a, b, and c, the bound is ceil(1.049 * 16384 / 3) = 5729. Suppose that partition 0 scores b highest,
// then a, then c. Then b owns partition 0. If b leaves, a owns it, and the partitions that score a or c highest keep
// their owner. If d joins, it takes the partition only if its score is higher than b's, which is the case for one
// partition in four. Toward the end of the table, b may already own 5729 partitions; then a partition that prefers b
// goes to its second choice. With 3 shards, that hardly ever happens, because chance spreads the partitions within 1 %
// or so. With 50 shards, it happens to fewer than one partition in a hundred.
//
// # Figures
//
// Averages over 100 random sets of names: the fullest of 3, 10, and 50 shards has 1.01, 1.04, and 1.05 times the mean;
// when a shard joins or leaves, 1.00, 1.00, and 1.07 times its own partitions change their owner. Beyond 50 shards,
// each shard has fewer partitions and chance spreads them less evenly, so the bound pushes on more of them: 1.2 times
// at 100 shards, 1.9 at 200, and 1.7 at 500.
//
// # Rejected alternatives
//
//   - Consistent hashing with 100 random partitions per shard: the fullest of 50 shards then has 1.23 times the mean,
//     and a lookup is a binary search. Cutting the space into equal parts is the third strategy of the Dynamo paper
//     (DeCandia et al. 2007), which found it the best of three.
//   - Rendezvous hashing per object, without a table: there is no bound, and the cost of a lookup grows with the
//     shards.
//   - Jump hashing: it numbers the shards, and only the last one may leave.
//   - Maglev's table: when a shard leaves, partitions also move between the shards that stay.
//   - Consistent hashing with bounded loads (Mirrokni et al. 2016) of objects, not partitions: it must know all
//     objects.
type Table struct {
	shards      []string // sorted, without duplicates
	owners      []int32  // by partition: index into shards; empty without shards
	owned       []int32  // by index into shards: number of partitions
	fingerprint string

	favourites func() *favourites // built by the first call
}

// New returns the table of the given shards. Their order does not matter, duplicates count once, and the slice is not
// kept. Without shards, no partition has an owner. It takes about 2 ms for 50 shards and 20 ms for 1,000; [Cache]
// avoids building the same table twice.
func New(shards []string) *Table {
	names := canonical(shards)
	t := &Table{
		shards: names, fingerprint: fingerprint(names),
		favourites: sync.OnceValue(func() *favourites { return seeded(names).index() }),
	}

	if len(names) > 0 {
		t.owners, t.owned = seeded(names).assign(nil, Partitions)
	}

	return t
}

// Owner returns the shard that owns the keys with the given hash. ok is false if the table has no shards. It takes
// constant time and allocates nothing.
func (t *Table) Owner(h key.Hash) (shard string, ok bool) { return t.OwnerOf(t.Partition(h)) }

// Partition returns the partition of the hash, from 0 to Partitions - 1. It is the same for every table.
func (t *Table) Partition(h key.Hash) int { return (int(h) >> (hashBits - partitionBits)) % Partitions }

// OwnerOf returns the shard that owns the partition. ok is false if there is no such partition or the table has no
// shards.
func (t *Table) OwnerOf(partition int) (shard string, ok bool) {
	if partition < 0 || partition >= len(t.owners) {
		return "", false
	}

	return t.shards[t.owners[partition]], true
}

// Shards returns the names of all shards, sorted. The caller owns the slice.
func (t *Table) Shards() []string { return slices.Clone(t.shards) }

// Has reports whether the shard is in the table.
func (t *Table) Has(shard string) bool {
	_, ok := slices.BinarySearch(t.shards, shard)
	return ok
}

// Len returns the number of shards.
func (t *Table) Len() int { return len(t.shards) }

// PartitionsOf returns how many partitions the shard owns; 0 if it is not in the table.
func (t *Table) PartitionsOf(shard string) int {
	i, ok := slices.BinarySearch(t.shards, shard)
	if !ok {
		return 0
	}

	return int(t.owned[i])
}

// LosingShards returns the shards, sorted, that are in both tables and own a partition in the table before but not in
// the table after: objects of these shards must move although their shard stays. It looks at each partition once.
func LosingShards(before, after *Table) []string {
	lost := make([]bool, len(before.shards))
	for t := range min(len(before.owners), len(after.owners)) {
		i := before.owners[t]
		lost[i] = lost[i] || before.shards[i] != after.shards[after.owners[t]]
	}

	var losing []string

	for i, name := range before.shards {
		if lost[i] && after.Has(name) {
			losing = append(losing, name)
		}
	}

	return losing
}

// Fingerprint returns 16 hexadecimal digits that identify the set of shards and the algorithm: two replicas with equal
// fingerprints have equal tables, as far as 64 bits of SHA-256 can tell.
func (t *Table) Fingerprint() string { return t.fingerprint }

// Fingerprint returns the fingerprint of the table of the given shards, in any order, without building the table.
func Fingerprint(shards []string) string { return fingerprint(canonical(shards)) }

// canonical returns the names sorted and without duplicates, as a copy.
func canonical(shards []string) []string {
	names := slices.Clone(shards)
	slices.Sort(names)

	return slices.Compact(names)
}

// fingerprint hashes the algorithm and the canonical names, each preceded by its length, so that no two sets have the
// same encoding.
func fingerprint(names []string) string {
	h := sha256.New()
	for _, s := range append([]string{algorithm}, names...) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(s))))
		h.Write([]byte(s))
	}

	return hex.EncodeToString(h.Sum(nil)[:8])
}

// bound returns the maximum number of partitions that one of n shards may own: ceil(1.049 * Partitions / n).
func bound(n int) int32 {
	return int32((boundPermille*Partitions + 1000*n - 1) / (1000 * n))
}

// score is how much the shard with the one seed prefers the partition with the other.
func score(shard, partition uint64) uint64 { return mix(shard ^ partition) }

// seedOf returns 64 pseudorandom bits that depend on every byte of the name.
func seedOf(name string) uint64 {
	sum := sha256.Sum256([]byte(scores + "/" + name))
	return binary.BigEndian.Uint64(sum[:8])
}

// partitionSeed returns 64 pseudorandom bits that differ for each partition.
func partitionSeed(partition int) uint64 { return mix(uint64(partition+1) * 0x9e3779b97f4a7c15) }

// mix permutes the 64-bit numbers so that each bit of the result depends on every bit of z. It is the output function
// of SplitMix64 (Steele, Lea, and Flood 2014).
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb

	return z ^ z>>31
}

// Cache shares tables between all users of the same set of shards, so that each table is built once while it is in use.
// It keeps the most recently used tables, up to a fixed number. It may be used by any number of goroutines.
type Cache struct {
	build func([]string) *Table

	mu     sync.Mutex // makes one table of a set
	tables *lru.Cache // func() *Table, which builds it on first use, by fingerprint
}

// NewCache returns a cache of at most size tables of 64 KiB each, or 192 KiB after a call of [Table.Ranking]. A size
// below 1 counts as 1.
func NewCache(size int) *Cache {
	return &Cache{build: New, tables: lru.New(max(size, 1))}
}

// Get returns the table of the given shards, in any order. Of several concurrent callers with the same set, one builds
// the table and the others wait for it. Callers with other sets do not wait.
func (c *Cache) Get(shards []string) *Table {
	names := canonical(shards)
	id := fingerprint(names)

	c.mu.Lock()

	table, ok := c.tables.Get(id)
	if !ok {
		table = sync.OnceValue(func() *Table { return c.build(names) })
		c.tables.Add(id, table)
	}

	c.mu.Unlock()

	return table.(func() *Table)()
}

// favouritesKept is how many shards each partition remembers. With 4, in tables of hundreds of shards, all of them are
// at their bound for fewer than one partition in a hundred; in smaller tables, for hardly any.
const favouritesKept = 4

// Ranking returns at most n different shards: the owner of the partition, then the one that would own it if the owner
// left, then the one that would own it if both had left, and so on. Each place is exactly the owner in the table
// without the shards before it. A partition that does not exist has no ranking.
//
// The first place is a lookup. Each further place reassigns the partitions up to the given one, which takes tens of
// microseconds for any number of shards. The first call that needs it builds an index of 128 KiB, in the time of a
// [New], which the table keeps.
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

	left := make([]int32, 0, cap(ranking))
	for len(ranking) < cap(ranking) {
		left = append(left, owner)
		owners, _ := t.favourites().assign(left, partition+1)
		owner = owners[partition]
		ranking = append(ranking, t.shards[owner])
	}

	return ranking
}

// favourites are, for each partition, the few shards that it prefers to all others, the best first. Preferences do not
// depend on which shards have left; only the owner does. Therefore, they serve every subset of a set of shards. Without
// an index, every owner is found by comparing scores, which is the faster way to build one table.
type favourites struct {
	seeds []uint64 // by index of the shard
	kept  int      // per partition
	table []uint16 // kept indexes of shards for partition 0, then for partition 1, and so on
}

// seeded returns favourites of the shards that have no index.
func seeded(shards []string) *favourites {
	f := &favourites{seeds: make([]uint64, len(shards))}
	for i, shard := range shards {
		f.seeds[i] = seedOf(shard)
	}

	return f
}

// index adds the index for all partitions, unless indexes of shards do not fit into it.
func (f *favourites) index() *favourites {
	if len(f.seeds) > math.MaxUint16+1 {
		return f
	}

	f.kept = min(favouritesKept, len(f.seeds))

	f.table = make([]uint16, 0, Partitions*f.kept)
	for t := range Partitions {
		f.table = f.appendBest(f.table, partitionSeed(t))
	}

	return f
}

// appendBest appends the favourites of one partition. Of equal scores, the shard with the lowest name comes first.
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

// assign assigns an owner to each of the first partitions, as described at [Table], after the given shards have left.
// At least one shard remains. It also returns how many each shard owns; those that have left count as full. The owner
// of a partition does not depend on later partitions.
func (f *favourites) assign(left []int32, partitions int) (owners, owned []int32) {
	owners, owned = make([]int32, partitions), make([]int32, len(f.seeds))
	limit := bound(len(owned) - len(left))

	for _, i := range left {
		owned[i] = limit // a full shard gets nothing
	}

	for t := range owners {
		row := f.table[t*f.kept : (t+1)*f.kept]

		if at := slices.IndexFunc(row, func(i uint16) bool { return owned[i] < limit }); at >= 0 {
			owners[t] = int32(row[at])
		} else {
			owners[t] = f.bestBelow(limit, owned, partitionSeed(t))
		}

		owned[owners[t]]++
	}

	return owners, owned
}

// bestBelow returns the shard with the highest score for the partition among those that own less than the limit. Of
// equal scores, the lowest name wins.
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
