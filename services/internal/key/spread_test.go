package key_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
)

// With SHA-256 instead of the hash, the fullest of 3 shards has 1.020 times the mean of 8,200 objects, averaged over many such
// series: 1.01 comes from the table, the rest from chance. The hash must be as good for names that count up.
func TestSequentialNamesSpreadEvenly(t *testing.T) {
	const objects, shards, series = 8200, 3, 40

	total, worst := 0.0, 0.0

	for s := range series {
		r := hashring.New([]string{fmt.Sprintf("shard-%d-0", s), fmt.Sprintf("shard-%d-1", s), fmt.Sprintf("shard-%d-2", s)})
		owned := map[string]int{}
		fullest := 0

		for i := range objects {
			k := key.Key{Kind: "ConfigMap", Namespace: fmt.Sprintf("ns-%d", s), Name: fmt.Sprintf("object-%d", i)}
			owner, ok := r.Owner(k.Hash())
			require.True(t, ok)
			owned[owner]++
			fullest = max(fullest, owned[owner])
		}

		ratio := float64(fullest) * shards / objects
		total, worst = total+ratio, max(worst, ratio)
	}
	t.Logf("%d sequential names over %d shards, %d times: max/mean %.4f on average, %.4f at worst",
		objects, shards, series, total/series, worst)
	require.Less(t, total/series, 1.025)
	require.Less(t, worst, 1.07)
}

// Objects are distributed over 1,024 equal parts of the hash space; chi-squared per degree of freedom is 1.00 ± 0.045 by chance.
func TestHashSpacePartsAreUsedEvenly(t *testing.T) {
	const objects, parts = 65536, 1024

	for shape, name := range map[string]func(i int) key.Key{
		"counting": func(i int) key.Key { return key.Key{Kind: "ConfigMap", Namespace: "default", Name: fmt.Sprint(i)} },
		"padded": func(i int) key.Key {
			return key.Key{Group: "apps", Kind: "Deployment", Name: fmt.Sprintf("web-%08d", i)}
		},
		"hexadecimal": func(i int) key.Key { return key.Key{Kind: "Pod", Namespace: "default", Name: fmt.Sprintf("job-%x", i)} },
		"namespaces": func(i int) key.Key {
			return key.Key{Kind: "Secret", Namespace: fmt.Sprintf("team-%d", i), Name: "token"}
		},
		"grid": func(i int) key.Key {
			return key.Key{Kind: "Secret", Namespace: fmt.Sprintf("team-%d", i%256), Name: fmt.Sprintf("app-%d-token", i/256)}
		},
		"repeated": func(i int) key.Key {
			n := fmt.Sprint(i)
			return key.Key{Group: n + ".example.com", Kind: "K" + n, Namespace: n, Name: n}
		},
		"binary": func(i int) key.Key { return key.Key{Kind: "Node", Name: fmt.Sprintf("%032b", i)} },
	} {
		t.Run(shape, func(t *testing.T) {
			var counts [parts]int
			for i := range objects {
				counts[uint64(name(i).Hash())*parts/key.Prime]++
			}

			const mean = float64(objects) / parts

			chi := 0.0
			for _, c := range counts {
				chi += math.Pow(float64(c)-mean, 2) / mean
			}
			t.Logf("chi-squared/df %.3f", chi/(parts-1))
			require.Less(t, chi/(parts-1), 1.2)
		})
	}
}
