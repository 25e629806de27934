package clusterring_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
)

func fenced() *v1alpha1.ClusterRing {
	return &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: "example"},
		Spec: v1alpha1.ClusterRingSpec{
			Fence: &v1alpha1.Fence{Mode: v1alpha1.FenceEnforce, ServiceAccounts: []v1alpha1.ServiceAccountReference{
				{Namespace: "one", Name: "controller"}, {Namespace: "two", Name: "controller"},
			}},
			Resources: []v1alpha1.RingResource{{Group: "example.org", Resource: "websites"}, {Resource: "pods"}},
		},
		Status: v1alpha1.ClusterRingStatus{Holders: []v1alpha1.ShardHolder{{Shard: "example-0", Pod: "forged"}}},
	}
}

var holders = []v1alpha1.ShardHolder{{Shard: "example-0", Pod: "pod-x"}}

func TestCorrected(t *testing.T) {
	ring := fenced()
	parameter := clusterring.FenceParameter(ring, holders)
	require.Equal(t, parameter.Data, clusterring.CorrectedFence(parameter, ring))

	ring.DeletionTimestamp = new(metav1.NewTime(time.Unix(1, 0)))
	require.Equal(t, parameter.Data, clusterring.CorrectedFence(parameter, ring), "this changes without the spec")

	ring.Spec.Fence.ServiceAccounts = ring.Spec.Fence.ServiceAccounts[:1]
	require.Equal(t, "system:serviceaccount:one:controller", clusterring.CorrectedFence(parameter, ring)["accounts"])

	parameter.Data["more"], parameter.Data["deleting"] = "", "true"
	require.NotContains(t, clusterring.CorrectedFence(parameter, fenced()), "more")
	require.Equal(t, "true", clusterring.CorrectedFence(parameter, fenced())["deleting"])
}
