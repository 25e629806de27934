package embedded

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// TestElectedProcessShardsTheRing: with the rights of deploy/example-embedded alone, new objects get a shard, the objects of a shard that is
// silent move to the others, and the ring's status tells.
func TestElectedProcessShardsTheRing(t *testing.T) {
	w := newWorld(t, localplane.Shared(t))
	w.join("a")
	w.shard("b", time.Second)
	w.start(w.options())
	w.start(w.options())

	for i := range 20 {
		w.create(fmt.Sprintf("site-%d", i))
	}

	for i := range 20 {
		w.waitAt(fmt.Sprintf("site-%d", i), "a") // at first, some are at b, which never renews its Lease
	}

	require.Eventually(t, func() bool {
		return meta.IsStatusConditionTrue(w.ring().Status.Conditions, v1alpha1.ConditionAssigned)
	}, patience, interval)

	ring := w.ring()
	require.True(t, meta.IsStatusConditionTrue(ring.Status.Conditions, v1alpha1.ConditionReady))
	require.Nil(t, meta.FindStatusCondition(ring.Status.Conditions, v1alpha1.ConditionWebhookRegistered))
	require.EqualValues(t, 1, ring.Status.AvailableShards)
	require.Equal(t, namespace+"/"+contract.SharderLeaseName(ringName), ring.Annotations[contract.AnnotationSharder])

	l := &coordinationv1.Lease{}
	require.NoError(t, w.client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: "b"}, l))
	require.Equal(t, "dead", l.Labels[contract.LabelState])
}
