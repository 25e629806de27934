package ringstatus_test

import (
	"fmt"
	"strings"
	"testing"

	"gotest.tools/v3/golden"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/leasemonitor/ringstatus"
)

// held and free return the Lease of a shard that holds it, and of one that does not.
func held(namespace, name string) *coordinationv1.Lease { return leaseOf(namespace, name, name) }
func free(namespace, name string) *coordinationv1.Lease { return leaseOf(namespace, name, "") }

func leaseOf(namespace, name, holder string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{v1alpha1.LabelClusterRing: "example"},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new(holder)},
	}
}

func condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

// TestConditions shows what people read in a ring's status. The table file is the specification.
func TestConditions(t *testing.T) {
	many := func() (leases []*coordinationv1.Lease) {
		for i := range 5 {
			leases = append(leases, held("default", fmt.Sprintf("%s-%02d", strings.Repeat("x", 64), i)))
		}

		return leases
	}
	three := []*coordinationv1.Lease{held("default", "a"), held("default", "b"), held("default", "c")}

	var table strings.Builder

	for _, c := range []struct {
		name     string
		leases   []*coordinationv1.Lease
		others   []metav1.Condition
		notTaken []string
		from     []string
	}{
		{name: "no shard has joined"},
		{name: "three shards", leases: three},
		{name: "one of three has stopped", leases: []*coordinationv1.Lease{three[0], three[1], free("default", "c")}},
		{name: "all have stopped", leases: []*coordinationv1.Lease{free("default", "a"), free("default", "b")}},
		{name: "one name in two namespaces", leases: []*coordinationv1.Lease{three[0], held("one", "b"), held("two", "b")}},
		{name: "a name that is no label value", leases: []*coordinationv1.Lease{three[0], held("default", strings.Repeat("long-", 13)+"name")}},
		{name: "only names that are no label values", leases: many()},
		{name: "a Lease cannot be taken over", leases: three, notTaken: []string{"shard default/b is stuck"}},
		{name: "many Leases cannot be taken over, one more is ignored", leases: append(many()[:1], three...), notTaken: []string{
			"shard default/a is stuck", "shard default/b is stuck", "shard default/c is stuck", "shard default/d is stuck",
		}},
		{name: "the Lease of a shard that is ignored cannot be taken over", leases: many()[:1], notTaken: []string{"shard default/x is stuck"}},
		{name: "objects move", leases: three, others: []metav1.Condition{
			condition(v1alpha1.ConditionWebhookRegistered, metav1.ConditionTrue, v1alpha1.ReasonRegistered, "registered"),
			condition(v1alpha1.ConditionAssigned, metav1.ConditionFalse, v1alpha1.ReasonMoving, "3 objects move"),
		}},
		{name: "drains are late", leases: three, others: []metav1.Condition{
			condition(v1alpha1.ConditionAssigned, metav1.ConditionFalse, v1alpha1.ReasonDrainsLate, "shard b has not given up configmaps default/x for 5m"),
		}},
		{name: "a resource is missing", leases: three, others: []metav1.Condition{
			condition(v1alpha1.ConditionWebhookRegistered, metav1.ConditionFalse, v1alpha1.ReasonResourcesMissing, "the API server does not serve foos.example.com"),
			condition(v1alpha1.ConditionAssigned, metav1.ConditionFalse, v1alpha1.ReasonResourcesMissing, "the API server does not serve foos.example.com"),
		}},
		{name: "others do not know", leases: three, others: []metav1.Condition{
			condition(v1alpha1.ConditionWebhookRegistered, metav1.ConditionUnknown, "Unknown", "?"),
			condition("SomethingElse", metav1.ConditionFalse, "Whatever", "not a condition of ours"),
		}},
		{name: "an older Ready has no say", leases: three, others: []metav1.Condition{
			condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonReconciliationFailed, "old"),
			condition(v1alpha1.ConditionShardsAvailable, metav1.ConditionFalse, v1alpha1.ReasonNoShards, "old"),
		}},
		{name: "a tenant holds Leases elsewhere", leases: append([]*coordinationv1.Lease{held("tenant", "a"), held("tenant", "d")}, three...), from: []string{"default"}},
		{name: "several namespaces count", leases: three, from: []string{"default", "more"}},
		{name: "the wrong namespace counts", leases: three, from: []string{"deflt"}},
	} {
		ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: "example", Generation: 7}}
		ring.Status.Conditions = c.others
		part := ringstatus.Of(ring, membership.Namespaces(c.from).View("example", c.leases, nil), c.notTaken)

		fmt.Fprintf(&table, "# %s\nobservedGeneration=%d shards=%d availableShards=%d\n", c.name, *part.ObservedGeneration, *part.Shards, *part.AvailableShards)

		for _, got := range part.Conditions {
			fmt.Fprintf(&table, "%s=%s (%s) %s\n", got.Type, got.Status, got.Reason, got.Message)
		}
		table.WriteByte('\n')
	}

	golden.Assert(t, table.String(), "conditions.txt")
}
