package membership_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/membership"
)

// A tenant can neither add a shard nor make one unavailable if the tenant's namespace does not count.
func TestLeasesElsewhereDoNotCount(t *testing.T) {
	leases := []*coordinationv1.Lease{
		leaseOf("r", "ns/a", "a"), leaseOf("r", "ns/b", "b"),
		leaseOf("r", "tenant/a", "a"), leaseOf("r", "tenant/c", "c"),
	}

	v := membership.NewView("r", leases, nil)
	require.Equal(t, []string{"b", "c"}, v.AvailableShards(), "everybody can do that if all namespaces count")
	require.Zero(t, v.Ignored())

	v = membership.Rules{Namespaces: membership.Namespaces{"ns", "more"}}.View("r", leases, nil)
	require.Equal(t, []string{"a", "b"}, v.AvailableShards())
	require.Len(t, v.Shards(), 2)
	require.Empty(t, v.Problems())
	require.Equal(t, 2, v.Ignored())
}

func TestIndexFollowsTheNamespacesThatCount(t *testing.T) {
	ring := func(namespaces ...string) *v1alpha1.ClusterRing {
		return &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: v1alpha1.ClusterRingSpec{ShardNamespaces: namespaces}}
	}

	x, changes := watched()
	require.Empty(t, x.ViewOf(ring("ns")).Shards())
	x.Upsert(leaseOf("r", "ns/a", "a"))
	x.Upsert(leaseOf("r", "tenant/b", "b"))
	x.Upsert(leaseOf("s", "tenant/c", "c"))
	changes()

	require.Equal(t, []string{"a"}, x.View("r").AvailableShards())
	require.Equal(t, []string{"c"}, x.View("s").AvailableShards(), "another ring")
	require.Same(t, x.View("r"), x.ViewOf(ring("ns")))
	require.Empty(t, changes())

	require.Equal(t, []string{"a", "b"}, x.ViewOf(ring("ns", "tenant")).AvailableShards())
	require.Equal(t, []string{"r"}, changes())

	x.Rule("r", membership.Rules{Namespaces: membership.Namespaces{"tenant"}})
	require.Equal(t, []string{"b"}, x.View("r").AvailableShards())
	x.Rule("r", membership.Rules{})
	require.Equal(t, []string{"a", "b"}, x.View("r").AvailableShards())
}

// What the Leases elsewhere are makes no difference.
func TestAnyLeasesElsewhereMakeNoDifference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := events().Draw(t, "leases")
		last := map[string]*coordinationv1.Lease{}

		x := membership.NewIndex()
		x.Rule("r", membership.Rules{Namespaces: membership.Namespaces{"one"}})

		for _, l := range all {
			apply(x, l)
			last[l.Namespace+"/"+l.Name] = l
		}

		var one, leases []*coordinationv1.Lease
		for _, l := range last {
			leases = append(leases, l)
			if l.Namespace == "one" {
				one = append(one, l)
			}
		}

		want := membership.NewView("r", one, nil)
		for _, got := range []*membership.View{x.View("r"), membership.Rules{Namespaces: membership.Namespaces{"one"}}.View("r", leases, nil)} {
			require.True(t, slices.Equal(want.Shards(), got.Shards()))
			require.Equal(t, want.AvailableShards(), got.AvailableShards())
			require.Equal(t, want.Problems(), got.Problems())
		}
	})
}
