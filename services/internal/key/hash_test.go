package key

import (
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The golden hashes pin the owner of every object. If one changes, all clusters move their objects.
func TestHashGolden(t *testing.T) {
	for _, tc := range []struct {
		key  Key
		want Hash
	}{
		{Key{}, 645669277},
		{Key{Kind: "ConfigMap", Namespace: "default", Name: "a"}, 720116427},
		{Key{Kind: "ConfigMap", Namespace: "default", Name: "b"}, 1313998093},
		{Key{Kind: "Namespace", Name: "default"}, 1518860651},
		{Key{Group: "apps", Kind: "Deployment", Namespace: "default", Name: "web"}, 129517797},
		{Key{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "system:controller:job-controller"}, 1903273833},
		{Key{Group: "example.com", Kind: "Großes", Namespace: "ns", Name: "名前"}, 1941269575},
		{longestKey(), 803678877},
	} {
		require.Equal(t, tc.want, tc.key.Hash(), "hash of %q", tc.key)
	}
}

// longestKey has the maximum number of characters in each part that an API server admits for a custom resource.
func longestKey() Key {
	subdomain := strings.Repeat("custom-resource-", 16)[:253]

	return Key{Group: subdomain, Kind: strings.Repeat("Kind", 16)[:63], Namespace: strings.Repeat("team-", 13)[:63],
		Name: subdomain}
}

// linear is a literal implementation of step 2 of the package documentation.
func linear(s string) uint64 {
	p, total := big.NewInt(Prime), new(big.Int)

	points := []rune(s)
	for i, c := range points {
		v := int64(strings.IndexRune(alphabet, c) + 1)
		m := new(big.Int).SetUint64(multipliers[i%len(multipliers)])
		total.Add(total, m.Mul(m, big.NewInt(v)))
	}

	length := new(big.Int).SetUint64(lengthMultiplier)
	total.Add(total, length.Mul(length, big.NewInt(int64(len(points)))))
	total.Add(total, new(big.Int).SetUint64(offset))

	return total.Mod(total, p).Uint64()
}

// reference is a literal implementation of the complete hash of the package documentation.
func reference(s string) Hash {
	p := big.NewInt(Prime)
	y := new(big.Int).Exp(new(big.Int).SetUint64(linear(s)), big.NewInt(5), p)
	y.Mul(y, new(big.Int).SetUint64(finalMultiplier)).Add(y, new(big.Int).SetUint64(finalOffset))

	return Hash(y.Mod(y, p).Uint64())
}

func TestHashIsWhatTheDocSays(t *testing.T) {
	for _, name := range []string{
		"", "a", "web-0", "system:node", "_", "名前", "a\x00b", "\xff\xfe", strings.Repeat("x", 635),
		strings.Repeat("x", positions-3), strings.Repeat("x", positions-2), strings.Repeat("ab", 5*positions),
	} {
		k := Key{Name: name}
		require.Equal(t, reference(k.String()), k.Hash(), "hash of %q", k)
	}
}

// Every part, and where one part ends, makes a difference.
func TestHashDistinguishesParts(t *testing.T) {
	seen := map[Hash]Key{}
	for _, k := range []Key{
		{"a", "b", "c", "d"}, {"b", "a", "c", "d"}, {"a", "c", "b", "d"}, {"a", "b", "d", "c"},
		{"ab", "", "c", "d"}, {"", "ab", "c", "d"}, {"", "", "abc", "d"}, {"", "", "", "abcd"}, {"abcd", "", "", ""},
		{"a", "b", "c", "da"}, {"a", "b", "c", "D"}, {"a", "B", "c", "d"}, {"a", "b", "c-1", "1"}, {"a", "b", "c", "1-1"},
	} {
		other, ok := seen[k.Hash()]
		require.False(t, ok, "%q and %q share the hash %d", k, other, k.Hash())
		seen[k.Hash()] = k
	}
}

func TestHashAllocatesNothing(t *testing.T) {
	for _, k := range []Key{{}, {Group: "apps", Kind: "Deployment", Namespace: "default", Name: "web"}, longestKey(),
		{Name: "名前\xff"}} {
		require.Zero(t, testing.AllocsPerRun(100, func() { _ = k.Hash() }), "allocations for %q", k)
	}
}

func BenchmarkHash(b *testing.B) {
	for _, c := range []struct {
		name string
		key  Key
	}{
		{"typical", Key{Group: "apps", Kind: "Deployment", Namespace: "team-production", Name: "checkout-service-7d9f"}},
		{"longest", longestKey()},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()

			for b.Loop() {
				_ = c.key.Hash()
			}
		})
	}
}
