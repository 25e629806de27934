package membership_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/membership"
)

// TestShardsMustFollowTheLabelOfTheirRing: a shard that would not see its objects gets none.
func TestShardsMustFollowTheLabelOfTheirRing(t *testing.T) {
	const label, other = "cloudapi.team-orca.dev/shard", "example.com/other"

	says := func(name, label string) *coordinationv1.Lease {
		l := leaseOf("r", "n/"+name, name)
		if label != "" {
			l.Annotations = map[string]string{contract.AnnotationShardLabel: label}
		}

		return l
	}
	leases := []*coordinationv1.Lease{says("default", ""), says("other", other), says("right", label), says("long", label+strings.Repeat("x", 1000))}

	ring := &v1alpha1.ClusterRing{}
	ring.Name = "r"

	view := membership.RulesOf(ring).View("r", leases, nil)
	require.Equal(t, []string{"default"}, view.WorkingShards())
	require.Contains(t, view.Problems()[1], "shard n/other: the shard selects its objects by the label "+other+", but the ring has no spec.shardLabel")

	ring.Spec.ShardLabel = label
	view = membership.RulesOf(ring).View("r", leases, nil)
	require.Equal(t, []string{"right"}, view.AvailableShards())
	require.Equal(t, []string{"right"}, view.WorkingShards())
	require.Len(t, view.Problems(), 3)
	require.Contains(t, view.Problems()[0], "shard n/default: the shard does not announce by which label it selects its objects, and spec.shardLabel of the ring is "+label)
	require.Contains(t, view.Problems()[2], "shard n/other: the shard selects its objects by the label "+other+", but spec.shardLabel of the ring is "+label)
	require.Less(t, len(view.Problems()[1]), 1000, "what a Lease says is not passed on at any length")

	// An index notices a change of the ring and of a Lease.
	x := membership.NewIndex()
	for _, l := range leases {
		x.Upsert(l)
	}

	require.Equal(t, []string{"right"}, x.ViewOf(ring).AvailableShards())
	require.False(t, membership.SameShard(says("other", other), says("other", label)))
	x.Upsert(says("other", label))
	require.Equal(t, []string{"other", "right"}, x.ViewOf(ring).AvailableShards())

	ring.Spec.ShardLabel = ""
	require.Equal(t, []string{"default"}, x.ViewOf(ring).AvailableShards())
}
