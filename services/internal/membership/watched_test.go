package membership

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
)

// watching returns the Lease of a shard that watches these namespaces; without any, all.
func watching(name string, namespaces ...string) *coordinationv1.Lease {
	at := metav1.NewMicroTime(time.Unix(1_900_000_000, 0))

	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shards", Name: name, UID: types.UID(name), Labels: map[string]string{contract.LabelClusterRing: "ring"},
			Annotations: map[string]string{contract.AnnotationNamespaces: contract.NamespacesValue(namespaces, at.Time)},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new(name), RenewTime: &at},
	}
}

func TestObjectsGoToShardsThatWatchTheirNamespace(t *testing.T) {
	all := NewView("ring", []*coordinationv1.Lease{watching("all"), watching("also")}, nil)
	v := NewView("ring", []*coordinationv1.Lease{watching("a", "a"), watching("ab", "a", "b"), watching("all"),
		watching("also")}, nil)
	require.False(t, all.Restricted())
	require.True(t, v.Restricted())

	for namespace, want := range map[string][]string{
		"a": {"a", "ab", "all", "also"}, "b": {"ab", "all", "also"}, "c": {"all", "also"}, "": {"a", "ab", "all", "also"},
	} {
		require.Equal(t, want, v.TableIn(namespace).Shards(), namespace)
		require.True(t, v.Watched(namespace))

		for _, name := range v.AvailableShards() {
			require.Equal(t, v.TableIn(namespace).Has(name), v.In(namespace).Works(name), "%s in %q", name, namespace)
		}

		for i := range 100 {
			owner, ok := v.OwnerIn(namespace, key.Key{Namespace: namespace, Name: fmt.Sprint(i)})
			require.True(t, ok)
			require.Contains(t, want, owner)
		}
	}

	require.Same(t, all.Table(), all.TableIn("a"), "without restrictions, there is one table")
	require.False(t, v.In("a").Works("unknown"))
}

func TestNobodyWatches(t *testing.T) {
	v := NewView("ring", []*coordinationv1.Lease{watching("x", "a", "b"), watching("y", "a", "b"), watching("z", "c")},
		hashring.NewCache(2))
	_, ok := v.OwnerIn("other", key.Key{Namespace: "other", Name: "n"})
	require.False(t, ok)
	require.False(t, v.Watched("other"))
	require.Equal(t, []string{"shards that watch only the namespaces a, b: x, y",
		"shards that watch only the namespaces c: z"}, v.Restrictions())

	many := make([]string, 300)
	for i := range many {
		many[i] = fmt.Sprintf("n-%03d", i)
	}

	require.Equal(t, []string{"shards that watch only the namespaces n-000, n-001, n-002, n-003, n-004 and 295 more: x"},
		NewView("ring", []*coordinationv1.Lease{watching("x", many...)}, nil).Restrictions())
}

// Replicas that know other namespaces of the same shards do not agree.
func TestFingerprintOfNamespaces(t *testing.T) {
	of := func(leases ...*coordinationv1.Lease) string { return NewView("ring", leases, nil).Fingerprint() }
	seen := map[string]bool{
		of(watching("x"), watching("y")): true, of(watching("x", "a"), watching("y")): true, of(watching("x", "a", "b"),
			watching("y")): true,
		of(watching("x"), watching("y", "a")): true,
	}
	require.Len(t, seen, 4)
	require.Equal(t, of(watching("x", "b", "a"), watching("y")), of(watching("y"), watching("x", "a", "b")))
	require.Equal(t, hashring.Fingerprint([]string{"x", "y"}), of(watching("x"), watching("y")))
}

// A process that does not know the annotation leaves it as it is, and a released Lease restricts nobody.
func TestNamespacesOfAPredecessorDoNotCount(t *testing.T) {
	renewed := watching("x", "a")
	renewed.Spec.RenewTime = &metav1.MicroTime{Time: renewed.Spec.RenewTime.Add(time.Second)}
	require.False(t, NewView("ring", []*coordinationv1.Lease{renewed}, nil).Restricted())

	released := watching("x", "a")
	released.Spec.HolderIdentity = new("")
	require.False(t, NewView("ring", []*coordinationv1.Lease{released}, nil).Restricted())

	require.False(t, SameShard(watching("x", "a"), renewed))

	long := watching("x", "a")
	long.Annotations[contract.AnnotationNamespaces] = strings.Repeat("a",
		5000) + "/" + contract.OfferValue(long.Spec.RenewTime.Time)
	require.False(t, NewView("ring", []*coordinationv1.Lease{long}, nil).Restricted())
}
