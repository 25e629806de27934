package membership_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/membership"
)

// Hostile Leases beside a shard: whatever they contain, every available name belongs to one Lease and can be a label value, and
// Leases in a namespace that does not count change nothing.
func FuzzHostileLeases(f *testing.F) {
	f.Add("ns", "a", "a", int32(15), "tenant", "a", "a", int32(1<<31-1))
	f.Add("ns", "", "", int32(-1), "tenant", "-", "-", int32(0))

	f.Fuzz(func(t *testing.T, namespace1, name1, holder1 string, seconds1 int32, namespace2, name2, holder2 string, seconds2 int32) {
		hostile := []*coordinationv1.Lease{
			leaseWith(namespace1, name1, holder1, seconds1), leaseWith(namespace2, name2, holder2, seconds2),
		}
		own := leaseOf("r", "own/shard", "shard")

		all := membership.NewView("r", append(hostile, own), nil)
		names := map[string]int{}

		for _, s := range all.Shards() {
			if s.Available {
				names[s.Name]++
				require.Empty(t, validation.IsValidLabelValue(s.Name))
				require.NotEmpty(t, s.Name)
				require.Equal(t, s.Name, s.Holder)
			}
		}

		for name, n := range names {
			require.Equal(t, 1, n, "%q", name)
		}

		require.Len(t, all.AvailableShards(), len(names))

		if namespace1 == "own" || namespace2 == "own" {
			return
		}

		counted := membership.Rules{Namespaces: membership.Namespaces{"own"}}.View("r", append(hostile, own), nil)
		require.Equal(t, []string{"shard"}, counted.AvailableShards())
		require.Equal(t, 2, counted.Ignored())
	})
}

func leaseWith(namespace, name, holder string, seconds int32) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{contract.LabelClusterRing: "r"}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds},
	}
}
