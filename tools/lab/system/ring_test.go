package system_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/system"
)

func TestStatusProblems(t *testing.T) {
	ring := &v1alpha1.ClusterRing{}
	ring.Status.AvailableShards = 2
	ring.Status.Assignment = &v1alpha1.AssignmentStatus{Fingerprint: "f"}

	for _, c := range []string{v1alpha1.ConditionShardsAvailable, v1alpha1.ConditionWebhookRegistered,
		v1alpha1.ConditionAssigned, v1alpha1.ConditionReady} {
		require.Contains(t, system.StatusProblems(ring, 2), "the ring has no condition "+c)
		meta.SetStatusCondition(&ring.Status.Conditions,
			metav1.Condition{Type: c, Status: metav1.ConditionTrue, Reason: "Fine"})
	}
	require.Empty(t, system.StatusProblems(ring, 2))
	meta.SetStatusCondition(&ring.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionAssigned, Status: metav1.ConditionFalse, Reason: "Moving", Message: "3 to go",
	})
	require.Equal(t, []string{"the ring has 2 available shards, not 3",
		"the ring has condition Assigned False: Moving: 3 to go"}, system.StatusProblems(ring, 3))
}
