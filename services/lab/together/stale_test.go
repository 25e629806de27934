package together_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// A tool applies objects with labels of another shard again and again. No other shard ever works on them, and the services write nothing.
func TestStaleManifests(t *testing.T) {
	w := newWorld(t, v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: tenant})
	w.join("a")
	w.join("b")

	conditions := func() []metav1.Condition {
		ring := &v1alpha1.ClusterRing{}
		require.NoError(t, w.plane.Client.Get(t.Context(), client.ObjectKey{Name: w.ring}, ring))

		return ring.Status.Conditions
	}

	require.Eventually(t, func() bool {
		return meta.IsStatusConditionTrue(conditions(), v1alpha1.ConditionAssigned) && meta.IsStatusConditionTrue(conditions(), v1alpha1.ConditionWebhookRegistered)
	}, patience, interval)

	const objects, times = 20, 6

	shardOf, versions := map[string]string{}, map[string]string{}

	for i := range objects {
		name := fmt.Sprint("o-", i)
		cm, _ := w.create(name, name)
		require.Eventually(t, func() bool { shardOf[name] = w.at(cm); return shardOf[name] != "" }, patience, interval)
	}

	since := meta.FindStatusCondition(conditions(), v1alpha1.ConditionAssigned).LastTransitionTime

	for n := range times {
		for name, shard := range shardOf {
			stale := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{"a": fmt.Sprint(n)}}}
			stale.SetNamespace(w.namespace)
			stale.SetName(name)
			stale.SetLabels(map[string]string{tenant: name, contract.ShardLabel(w.ring): map[string]string{"a": "b", "b": "a"}[shard]})

			require.NoError(t, w.plane.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(stale), client.FieldOwner("tool"), client.ForceOwnership))

			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
			require.Equal(t, shard, w.at(cm))
			require.Equal(t, fmt.Sprint(n), cm.Data["a"])

			versions[name] = cm.ResourceVersion
			assigned := meta.FindStatusCondition(conditions(), v1alpha1.ConditionAssigned)
			require.Equal(t, metav1.ConditionTrue, assigned.Status, assigned.Message)
			require.Equal(t, since, assigned.LastTransitionTime)
		}
	}

	for name, version := range versions {
		cm := &corev1.ConfigMap{}
		require.NoError(t, w.plane.Client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, cm))
		require.Equal(t, version, cm.ResourceVersion, "nobody else has written it")
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	require.Empty(t, w.twice, "two shards worked on one object")
}
