package v1alpha1_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

func TestLabelKeys(t *testing.T) {
	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: "example"}}
	require.Equal(t, contract.LabelKeys{
		Shard:    "shard.alpha.sharding.timebertt.dev/clusterring-50d858e0-example",
		Drain:    "drain.alpha.sharding.timebertt.dev/clusterring-50d858e0-example",
		Handover: "handover.alpha.sharding.timebertt.dev/clusterring-50d858e0-example",
		Held:     "held.alpha.sharding.timebertt.dev/clusterring-50d858e0-example",
	}, ring.LabelKeys())

	ring.Spec.ShardLabel = "cloudapi.team-orca.dev/shard"
	require.Equal(t, contract.LabelKeys{
		Shard:    "cloudapi.team-orca.dev/shard",
		Drain:    "cloudapi.team-orca.dev/shard-drain",
		Handover: "cloudapi.team-orca.dev/shard-handover",
		Held:     "cloudapi.team-orca.dev/shard-held",
	}, ring.LabelKeys())
	require.Equal(t, ring.LabelKeys(), contract.LabelKeysOf("other", ring.Spec.ShardLabel), "the name has no part in it")
}
