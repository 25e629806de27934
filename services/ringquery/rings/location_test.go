package rings

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/membership"
)

// TestNextShardsAreThoseOfTheRanking, whether rings are kept or not.
func TestNextShardsAreThoseOfTheRanking(t *testing.T) {
	for _, shards := range []int{0, 1, 2, 5, largeRing - 1, largeRing} {
		var leases []*coordinationv1.Lease

		for i := range shards {
			name := fmt.Sprint("shard-", i)
			leases = append(leases, &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelClusterRing: "ring"}},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name},
			})
		}

		r := Ring{View: membership.NewView("ring", leases, nil), smaller: hashring.NewCache(smallerKept)}
		require.Equal(t, shards, r.View.Table().Len())

		for partition := 0; partition < hashring.Partitions; partition += 1111 {
			for n := range 4 {
				var want []string
				if ranking := r.View.Table().Ranking(partition, n+1); len(ranking) > 1 {
					want = ranking[1:]
				}
				require.Equal(t, want, r.next(partition, n), "%d shards, partition %d, %d next", shards, partition, n)
			}
		}
	}
}
