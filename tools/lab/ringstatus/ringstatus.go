// Package ringstatus judges the status of a ring.
package ringstatus

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// Problems returns the problems of a ring's status, which must report the given number of available shards and that all
// conditions are true.
func Problems(ring *v1alpha1.ClusterRing, shards int) []string {
	var problems []string
	if n := int(ring.Status.AvailableShards); n != shards {
		problems = append(problems, fmt.Sprintf("the ring has %d available shards, not %d", n, shards))
	}

	types := []string{v1alpha1.ConditionShardsAvailable, v1alpha1.ConditionAssigned, v1alpha1.ConditionReady}
	if ring.Spec.Sharder != v1alpha1.SharderEmbedded { // such a ring uses no webhook
		types = append(types, v1alpha1.ConditionWebhookRegistered)
	}

	for _, t := range types {
		switch c := meta.FindStatusCondition(ring.Status.Conditions, t); {
		case c == nil:
			problems = append(problems, fmt.Sprintf("the ring has no condition %s", t))
		case c.Status != metav1.ConditionTrue:
			problems = append(problems, fmt.Sprintf("the ring has condition %s %s: %s: %s", t, c.Status, c.Reason, c.Message))
		}
	}

	return problems
}
