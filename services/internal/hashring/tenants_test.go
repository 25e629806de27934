package hashring_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gotest.tools/v3/golden"

	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
)

// zipf returns the sizes of n tenants with 10,000 objects in all, if the k-th largest has 1/k of the objects of the
// largest.
func zipf(n int) []int {
	var sum float64
	for k := range n {
		sum += 1 / float64(k+1)
	}

	sizes := make([]int, n)
	for k := range sizes {
		sizes[k] = int(10_000/sum/float64(k+1) + 0.5)
	}

	return sizes
}

// even returns the sizes of n tenants of equal size.
func even(n int) []int { return slices.Repeat([]int{10_000 / n}, n) }

// TestSkewOfTenants measures how unequal the shards are if objects that belong together are at one shard: how many
// times as many objects as the mean the fullest shard has, over 100 sets of tenants' names. docs/keys.md shows the
// result.
func TestSkewOfTenants(t *testing.T) {
	var out strings.Builder

	fmt.Fprintf(&out, "%-41s %12s %12s %12s %12s\n", "max/mean: median (worst 5 %)", "3 shards", "5 shards", "10 shards",
		"20 shards")

	for _, c := range []struct {
		what  string
		sizes []int
	}{
		{"by name", slices.Repeat([]int{1}, 10_000)},
		{"1000 tenants of equal size", even(1000)},
		{"100 tenants of equal size", even(100)},
		{"1000 tenants of Zipf sizes, largest 13 %", zipf(1000)},
		{"100 tenants of Zipf sizes, largest 19 %", zipf(100)},
	} {
		hashes := tenantsOf(len(c.sizes))

		fmt.Fprintf(&out, "%-41s", c.what)

		for _, shards := range []int{3, 5, 10, 20} {
			skews := skewsOf(t, shards, c.sizes, hashes)
			fmt.Fprintf(&out, " %12s", fmt.Sprintf("%3.2f (%3.2f)", skews[sets/2], skews[sets*95/100]))
		}

		fmt.Fprintln(&out)
	}

	t.Log("\n" + out.String())
	golden.Assert(t, out.String(), "tenants.txt")
}

// sets is how many sets of tenants' names are tried.
const sets = 100

// tenantsOf returns sets of hashes of n tenants.
func tenantsOf(n int) (all [sets][]key.Hash) {
	for set := range all {
		for i := range n {
			all[set] = append(all[set], key.OfLabel("example.com/tenant", fmt.Sprintf("set-%d-tenant-%d", set, i)).Hash())
		}
	}

	return all
}

// skewsOf returns, for each set of tenants, sorted, how many times as many objects as the mean the fullest shard has.
func skewsOf(t *testing.T, shards int, sizes []int, tenants [sets][]key.Hash) (skews []float64) {
	t.Helper()

	names := make([]string, shards)
	for i := range names {
		names[i] = fmt.Sprint("shard-", i)
	}

	table := hashring.New(names)

	for _, hashes := range tenants {
		objects, total, most := map[string]int{}, 0, 0

		for i, h := range hashes {
			owner, ok := table.Owner(h)
			require.True(t, ok)

			objects[owner] += sizes[i]
			total += sizes[i]
			most = max(most, objects[owner])
		}

		skews = append(skews, float64(most)*float64(shards)/float64(total))
	}

	slices.Sort(skews)

	return skews
}
