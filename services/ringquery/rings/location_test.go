package rings

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// TestNextShardsOwnTheKeyIfThoseBeforeThemFail compares the next shards with the owners in rings without the shards before them.
func TestNextShardsOwnTheKeyIfThoseBeforeThemFail(t *testing.T) {
	for _, shards := range []int{0, 1, 2, 5, 17} {
		var leases []*coordinationv1.Lease

		for i := range shards {
			name := fmt.Sprint("shard-", i)
			leases = append(leases, &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{contract.LabelClusterRing: "ring"}},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name},
			})
		}

		r := Ring{ClusterRing: &v1alpha1.ClusterRing{}, View: membership.NewView("ring", leases, nil)}
		require.Equal(t, shards, r.View.Table().Len())

		for object := range 10 {
			k := key.Key{Kind: "ConfigMap", Namespace: "default", Name: fmt.Sprint("object-", object)}

			for n := range 4 {
				at := r.Locate(resources.Main, Covered, Key{Key: k}, n)
				left := r.View.Table().Shards()

				for _, shard := range append([]string{at.GetShard()}, at.GetNextShards()...) {
					owner, _ := hashring.New(left).Owner(k.Hash())
					require.Equal(t, owner, shard, "%d shards, object %d, %d next", shards, object, n)

					left = slices.DeleteFunc(left, func(name string) bool { return name == shard })
				}
				require.Len(t, at.GetNextShards(), max(0, min(n, shards-1)))
			}
		}
	}
}
