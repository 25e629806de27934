package hashring_test

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gotest.tools/v3/golden"
	"pgregory.net/rapid"

	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
)

// TestMain makes rapid use the same input in each run, unless -rapid.seed is set.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.seed", "1"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// table returns the owner of every partition.
func table(t require.TestingT, r *hashring.Table) []string {
	owners := make([]string, hashring.Partitions)
	for partition := range owners {
		owner, ok := r.OwnerOf(partition)
		if !ok {
			require.FailNow(t, "a partition has no owner", "partition %d", partition)
		}

		owners[partition] = owner
	}

	return owners
}

// names are realistic names of shards, and names that would collide if they were joined with numbers without a
// separator.
func names(least, most int) *rapid.Generator[[]string] {
	name := rapid.OneOf(
		rapid.StringMatching(`[a-z]([a-z0-9-]{0,20}[a-z0-9])?`),
		rapid.StringMatching(`x-1{1,4}0{0,3}`),
		rapid.StringMatching(`shard-[0-9a-f]{9}-[a-z0-9]{5}`),
		rapid.String(),
	)

	return rapid.SliceOfNDistinct(name, least, most, rapid.ID)
}

func TestOrderAndDuplicatesChangeNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shards := names(1, 30).Draw(t, "shards")
		repeated := append(slices.Clone(shards), rapid.SliceOf(rapid.SampledFrom(shards)).Draw(t, "repeated")...)
		shuffled := rapid.Permutation(repeated).Draw(t, "shuffled")

		a, b := hashring.New(shards), hashring.New(shuffled)
		require.Equal(t, a.Fingerprint(), b.Fingerprint())
		require.Equal(t, a.Shards(), b.Shards())
		require.Equal(t, table(t, a), table(t, b))
	})
}

// The invariants at [Table] that hold for each single table.
func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shards := names(1, 60).Draw(t, "shards")
		r := hashring.New(shards)
		require.Equal(t, len(shards), r.Len())
		require.True(t, slices.IsSorted(r.Shards()))

		owned := map[string]int{}
		for _, owner := range table(t, r) {
			owned[owner]++
		}

		bound := (105*hashring.Partitions + 100*len(shards) - 1) / (100 * len(shards))
		total := 0

		for _, shard := range shards {
			require.True(t, r.Has(shard))
			require.Equal(t, owned[shard], r.PartitionsOf(shard))
			require.LessOrEqual(t, r.PartitionsOf(shard), bound)
			total += r.PartitionsOf(shard)
		}
		require.Equal(t, hashring.Partitions, total)
	})
}

// With three shards, the bound does not bind, so only the necessary partitions move. It causes few other moves, and
// these are limited: with n shards, at most the excess over a shard's share.
func TestLeavingMovesFewOtherPartitions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shards := names(2, rapid.SampledFrom([]int{3, 60}).Draw(t, "most")).Draw(t, "shards")
		leaver := rapid.SampledFrom(shards).Draw(t, "leaver")
		staying := slices.DeleteFunc(slices.Clone(shards), func(s string) bool { return s == leaver })

		full := hashring.New(shards)
		before, after := table(t, full), table(t, hashring.New(staying))
		others := 0

		for partition := range before {
			if before[partition] != leaver && before[partition] != after[partition] {
				others++
			}
		}

		if len(shards) <= 3 {
			require.Zero(t, others)
		}

		require.LessOrEqual(t, others, full.PartitionsOf(leaver)/4)
	})
}

// A lookup by hash is a lookup by partition, and the partition is the upper part of the hash.
func TestOwnerIsThatOfThePartition(t *testing.T) {
	r := hashring.New([]string{"a", "b", "c"})
	require.Zero(t, r.Partition(0))
	require.Equal(t, 1, r.Partition(1<<17))
	require.Equal(t, hashring.Partitions-1, r.Partition(key.Prime-1))
	rapid.Check(t, func(t *rapid.T) {
		h := key.Hash(rapid.Uint32Range(0, key.Prime-1).Draw(t, "hash"))
		owner, ok := r.Owner(h)
		want, _ := r.OwnerOf(r.Partition(h))
		require.True(t, ok)
		require.Equal(t, want, owner)
	})

	for _, h := range []key.Hash{key.Prime, 1 << 31, 1<<32 - 1} {
		_, ok := r.Owner(h)
		require.True(t, ok)
	}

	for _, partition := range []int{-1, hashring.Partitions, 1 << 40} {
		_, ok := r.OwnerOf(partition)
		require.False(t, ok)
		require.Empty(t, r.Ranking(partition, 2))
	}
}

func TestRingWithoutShards(t *testing.T) {
	for _, r := range []*hashring.Table{hashring.New(nil), hashring.New([]string{}), {}} {
		_, ok := r.Owner(0)
		require.False(t, ok)
		_, ok = r.OwnerOf(0)
		require.False(t, ok)
		require.Empty(t, r.Ranking(0, 3))
		require.Empty(t, r.Shards())
		require.Zero(t, r.Len())
		require.Zero(t, r.PartitionsOf("a"))
		require.False(t, r.Has("a"))
	}
	require.Len(t, hashring.New(nil).Fingerprint(), 16)
	require.Equal(t, hashring.New(nil).Fingerprint(), hashring.New([]string{}).Fingerprint())
}

func TestRingKeepsNothingOfTheCaller(t *testing.T) {
	shards := []string{"c", "a", "b"}
	r := hashring.New(shards)
	require.Equal(t, []string{"c", "a", "b"}, shards, "the argument was sorted")
	shards[0] = "changed"
	r.Shards()[0] = "changed"
	require.Equal(t, []string{"a", "b", "c"}, r.Shards())
}

func TestFingerprintSeparatesNames(t *testing.T) {
	sets := [][]string{
		nil, {""}, {"", "a"}, {"a"}, {"b"}, {"a", "b"}, {"ab"}, {"a,b"}, {"a\x00b"}, {"a/b"}, {"b", "a", "c"}, {"ab", "c"},
		{"a", "bc"},
		{"x-1"}, {"x-11"}, {"x-10"}, {"x-1", "x-10"}, {"x-1", "x-11"}, {"x-1", "10"}, {"x-11", "0"}, {"x-110"},
	}
	seen := map[string][]string{}

	for _, set := range sets {
		f := hashring.New(set).Fingerprint()
		require.Equal(t, f, hashring.Fingerprint(set))
		require.Regexp(t, "^[0-9a-f]{16}$", f)
		require.NotContains(t, seen, f, "%q and %q have one fingerprint", set, seen[f])
		seen[f] = set
	}
}

// Names that would be equal with a number appended, or that differ in one character, own random partitions and not the
// same ones: a share of 1/n each, for any names.
func TestNamesThatLookAlikeShareNothing(t *testing.T) {
	shards := []string{"x-1", "x-10", "x-11", "x-110", "x-111", "x-1-0", "x-1-10", "x", "x-", "1", "10", "11", "X-1"}
	r := hashring.New(shards)

	mean := float64(hashring.Partitions) / float64(len(shards))
	for _, shard := range shards {
		require.InEpsilon(t, mean, float64(r.PartitionsOf(shard)), 0.12, "partitions of %q", shard)
	}
	// The second choice for a shard's partitions is any of the others, not its lookalike.
	seconds := map[string]int{}

	for partition := range hashring.Partitions {
		if owner, _ := r.OwnerOf(partition); owner == "x-1" && partition%8 == 0 {
			seconds[r.Ranking(partition, 2)[1]]++
		}
	}
	require.Greater(t, len(seconds), len(shards)-3, "seconds after x-1: %v", seconds)
}

// randomNames returns n different names, like those of Pods.
func randomNames(random *rand.Rand, n int) []string {
	set := map[string]bool{}
	for len(set) < n {
		set[fmt.Sprintf("shard-%08x-%05d", random.Uint32(), random.IntN(100000))] = true
	}

	shards := make([]string, 0, n)
	for name := range set {
		shards = append(shards, name)
	}
	slices.Sort(shards)

	return shards
}

func TestLosingShards(t *testing.T) {
	few, more := hashring.New([]string{"a", "b", "c"}), hashring.New([]string{"d", "c", "b", "a"})
	require.Equal(t, []string{"a", "b", "c"}, hashring.LosingShards(few, more), "all give something to the new one")
	require.Empty(t, hashring.LosingShards(more, few), "the bound is far, and a shard that has left is not on the ring")
	require.Empty(t, hashring.LosingShards(few, few))
	require.Empty(t, hashring.LosingShards(hashring.New(nil), few))
	require.Empty(t, hashring.LosingShards(few, hashring.New(nil)))

	// Where the bound pushes partitions on, a departure moves some between the shards that stay.
	var names []string
	for i := range 200 {
		names = append(names, fmt.Sprintf("shard-%d", i))
	}

	before, after := hashring.New(names), hashring.New(names[1:])
	lost := map[string]bool{}

	for partition := range hashring.Partitions {
		was, _ := before.OwnerOf(partition)

		is, _ := after.OwnerOf(partition)
		if was != is && was != names[0] {
			lost[was] = true
		}
	}
	require.NotEmpty(t, lost)
	require.Equal(t, slices.Sorted(maps.Keys(lost)), hashring.LosingShards(before, after))
}

// The golden file pins the algorithm. If it changes, every object of every cluster may change its shard, and replicas
// of different versions disagree: the version in the fingerprint must then also change.
func TestGolden(t *testing.T) {
	var got strings.Builder
	for _, shards := range [][]string{
		{},
		{"shard-0"},
		{"shard-0", "shard-1", "shard-2"},
		{"shard-0", "shard-1", "shard-2", "shard-3"},
		{"x-1", "x-10", "x-11", "x-110", "x-1-0"},
	} {
		describe(&got, shards)
	}
	// the algorithm has changed if this fails: if that is meant, change its version
	golden.Assert(t, got.String(), "tables.txt")
}

// describe writes a table: its shards with their shares, some complete partitions, and a digest of the whole table.
func describe(w *strings.Builder, shards []string) {
	r := hashring.New(shards)
	fmt.Fprintf(w, "shards       %s\n", strings.Join(r.Shards(), " "))
	fmt.Fprintf(w, "fingerprint  %s\n", r.Fingerprint())

	for _, shard := range r.Shards() {
		fmt.Fprintf(w, "partitions   %-8s %5d  %.4f of the mean\n", shard, r.PartitionsOf(shard),
			float64(r.PartitionsOf(shard))*float64(r.Len())/hashring.Partitions)
	}

	digest := sha256.New()

	for partition := range hashring.Partitions {
		owner, _ := r.OwnerOf(partition)
		fmt.Fprintf(digest, "%d %s\n", partition, owner)
	}
	fmt.Fprintf(w, "table        %s\n", hex.EncodeToString(digest.Sum(nil)))

	for _, partition := range []int{0, 1, 2, 3, 1000, 8191, 16000, hashring.Partitions - 1} {
		fmt.Fprintf(w, "partition %5d  %s\n", partition, strings.Join(r.Ranking(partition, 3), " > "))
	}
	fmt.Fprintln(w)
}

func BenchmarkNew(b *testing.B) {
	for _, n := range []int{3, 10, 50, 500, 1000} {
		shards := randomNames(rand.New(rand.NewPCG(1, 1)), n)
		b.Run(fmt.Sprintf("shards=%d", n), func(b *testing.B) {
			b.ReportAllocs()

			for b.Loop() {
				hashring.New(shards)
			}
		})
	}
}

func BenchmarkOwner(b *testing.B) {
	r := hashring.New(randomNames(rand.New(rand.NewPCG(1, 1)), 50))
	b.ReportAllocs()

	h := key.Hash(1)
	for b.Loop() {
		_, _ = r.Owner(h)
		h = (h*48271 + 11) % key.Prime
	}
}

// Rankings of all partitions in turn: the owner and two more.
func BenchmarkRanking(b *testing.B) {
	for _, n := range []int{3, 50, 300, 1000} {
		r := hashring.New(randomNames(rand.New(rand.NewPCG(1, 1)), n))
		r.Ranking(0, 2) // makes the table
		b.Run(fmt.Sprintf("shards=%d", n), func(b *testing.B) {
			b.ReportAllocs()

			partition := 0
			for b.Loop() {
				r.Ranking(partition, 3)
				partition = (partition + 4799) % hashring.Partitions
			}
		})
	}
}
