package v1alpha1

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

func TestLabelsOfTheGuideAreThoseOfTheContract(t *testing.T) {
	for _, ring := range []string{"example", "my-clusterring", strings.Repeat("a", 41) + "-" + strings.Repeat("b", 21)} {
		for _, kind := range []string{KindClusterRing, "ClusterRing"} {
			require.Equal(t, contract.ShardLabel(ring), LabelShard(kind, "", ring))
			require.Equal(t, contract.DrainLabel(ring), LabelDrain(kind, "", ring))
		}
	}

	require.Equal(t, "shard.alpha.sharding.timebertt.dev/clusterring-50d858e0-example", LabelShard(KindClusterRing, "", "example"))
	require.NotEqual(t, LabelShard("ring", "a", "b"), LabelShard("ring", "", "b"))
	require.True(t, strings.HasSuffix(LabelShard("ring", "a", "b"), "-a_b"))
}
