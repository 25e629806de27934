package policies_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// TestRebalancerMovesLargeObjects: the cost of an expression is limited, but not the number of labels and annotations of an object.
func TestRebalancerMovesLargeObjects(t *testing.T) {
	const (
		labels      = 3_000
		annotations = 35_000
	)

	p := newPolicies(t)
	own := p.shards + ".example.com/shard"
	p.create(&rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "move-large-" + p.ring.Name, Labels: map[string]string{contract.LabelAggregateToRebalancer: "true"}},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"patch"}},
			{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{contract.ResourceShardLabels}, ResourceNames: []string{own}, Verbs: []string{"write"}},
		},
	})
	require.NoError(t, p.Aggregate(t.Context()))

	numbered := func(count int) map[string]string {
		all := make(map[string]string, count)
		for i := range count {
			all[fmt.Sprintf("%05x", i)] = ""
		}

		return all
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.tenant, Name: "large", Labels: numbered(labels), Annotations: numbered(annotations),
	}}
	p.create(object)

	rebalancer := p.service("rebalancer")
	shard, drain := contract.ShardLabel(p.ring.Name), contract.DrainLabel(p.ring.Name)

	require.Eventually(t, func() bool {
		return patching(t, rebalancer, object, `{"metadata":{"labels":{"`+drain+`":"true"}}}`)() == nil
	}, soon, tick, "the API server should know the permission")
	require.NoError(t, patching(t, rebalancer, object, `{"metadata":{"labels":{"`+shard+`":"a","`+drain+`":null}}}`)())
	require.NoError(t, patching(t, rebalancer, object, `{"metadata":{"labels":{"`+own+`":"a"}}}`)())
	p.refused(patching(t, rebalancer, object, `{"metadata":{"labels":{"`+shard+`":"a"}},"data":{"k":"v"}}`), "may not change data;")
	p.refused(patching(t, rebalancer, object, `{"metadata":{"labels":{"00000":"x"}}}`), "may not change label 00000;")
}
