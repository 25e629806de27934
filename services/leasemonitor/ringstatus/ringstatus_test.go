package ringstatus_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gotest.tools/v3/golden"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/leasemonitor/ringstatus"
)

// held and free return the Lease of a shard that holds it, and of one that does not.
func held(namespace, name string) *coordinationv1.Lease { return leaseOf(namespace, name, name) }
func free(namespace, name string) *coordinationv1.Lease { return leaseOf(namespace, name, "") }

// stopping returns the Lease of a shard that works until its objects are drained.
func stopping(namespace, name string) *coordinationv1.Lease {
	l := held(namespace, name)
	l.Spec.RenewTime = new(metav1.NowMicro())
	metav1.SetMetaDataAnnotation(&l.ObjectMeta, contract.AnnotationStopping, contract.OfferValue(l.Spec.RenewTime.Time))

	return l
}

func leaseOf(namespace, name, holder string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{contract.LabelClusterRing: "example"},
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
		holder   string
	}{
		{name: "no shard has joined"},
		{name: "three shards", leases: three},
		{name: "one of three has stopped", leases: []*coordinationv1.Lease{three[0], three[1], free("default", "c")}},
		{name: "one of three stops", leases: []*coordinationv1.Lease{three[0], stopping("default", "b"),
			free("default", "c")}},
		{name: "the only one stops", leases: []*coordinationv1.Lease{stopping("default", "a")}},
		{name: "all have stopped", leases: []*coordinationv1.Lease{free("default", "a"), free("default", "b")}},
		{name: "one name in two namespaces", leases: []*coordinationv1.Lease{three[0], held("one", "b"), held("two", "b")}},
		{name: "a name that is no label value", leases: []*coordinationv1.Lease{three[0],
			held("default", strings.Repeat("long-", 13)+"name")}},
		{name: "only names that are no label values", leases: many()},
		{name: "a Lease cannot be taken over", leases: three, notTaken: []string{"shard default/b is stuck"}},
		{name: "many Leases cannot be taken over, one more is ignored", leases: append(many()[:1], three...),
			notTaken: []string{
				"shard default/a is stuck", "shard default/b is stuck", "shard default/c is stuck", "shard default/d is stuck",
			}},
		{name: "the Lease of a shard that is ignored cannot be taken over", leases: many()[:1],
			notTaken: []string{"shard default/x is stuck"}},
		{name: "objects move", leases: three, others: []metav1.Condition{
			condition(v1alpha1.ConditionWebhookRegistered, metav1.ConditionTrue, v1alpha1.ReasonRegistered, "registered"),
			condition(v1alpha1.ConditionAssigned, metav1.ConditionFalse, v1alpha1.ReasonMoving, "3 objects move"),
		}},
		{name: "drains are late", leases: three, others: []metav1.Condition{
			condition(v1alpha1.ConditionAssigned, metav1.ConditionFalse, v1alpha1.ReasonDrainsLate,
				"shard b has not given up configmaps default/x for 5m"),
		}},
		{name: "a resource is missing", leases: three, others: []metav1.Condition{
			condition(v1alpha1.ConditionWebhookRegistered, metav1.ConditionFalse, v1alpha1.ReasonResourcesMissing,
				"the API server does not serve foos.example.com"),
			condition(v1alpha1.ConditionAssigned, metav1.ConditionFalse, v1alpha1.ReasonResourcesMissing,
				"the API server does not serve foos.example.com"),
		}},
		{name: "others do not know", leases: three, others: []metav1.Condition{
			condition(v1alpha1.ConditionWebhookRegistered, metav1.ConditionUnknown, "Unknown", "?"),
			condition("SomethingElse", metav1.ConditionFalse, "Whatever", "not a condition of ours"),
		}},
		{name: "an older Ready has no say", leases: three, others: []metav1.Condition{
			condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonReconciliationFailed, "old"),
			condition(v1alpha1.ConditionShardsAvailable, metav1.ConditionFalse, v1alpha1.ReasonNoShards, "old"),
		}},
		{name: "writes are audited", leases: three, others: []metav1.Condition{
			condition(v1alpha1.ConditionFenced, metav1.ConditionFalse, v1alpha1.ReasonFenceAudited, "writes are reported"),
		}},
		{name: "the fence is missing", leases: three, others: []metav1.Condition{
			condition(v1alpha1.ConditionFenced, metav1.ConditionFalse, v1alpha1.ReasonFenceFailed,
				"policy fence.sharding.timebertt.dev does not exist"),
		}},
		{name: "a tenant holds Leases elsewhere", leases: append([]*coordinationv1.Lease{held("tenant", "a"),
			held("tenant", "d")}, three...), from: []string{"default"}},
		{name: "several namespaces count", leases: three, from: []string{"default", "more"}},
		{name: "more Leases than a ring has shards", leases: flood(), from: []string{"default"}},
		{name: "an older ring has the same label", holder: "older"},
		{name: "the wrong namespace counts", leases: three, from: []string{"deflt"}},
	} {
		ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: "example", Generation: 7}}
		if c.holder != "" {
			ring.Spec.ShardLabel = "example.com/shard"
		}

		ring.Spec.ShardNamespaces, ring.Status.Conditions = c.from, c.others
		part := ringstatus.Of(ring, c.leases, c.notTaken, c.holder)

		require.Empty(t, part.Holders)
		fmt.Fprintf(&table, "# %s\nobservedGeneration=%d shards=%d availableShards=%d\n", c.name, *part.ObservedGeneration,
			*part.Shards, *part.AvailableShards)

		for _, got := range part.Conditions {
			fmt.Fprintf(&table, "%s=%s (%s) %s\n", got.Type, got.Status, got.Reason, got.Message)
		}
		table.WriteByte('\n')
	}

	golden.Assert(t, table.String(), "conditions.txt")
}

// TestHolders shows which Pods run which shards, for those that are not named like their Pod.
func TestHolders(t *testing.T) {
	at := func(l *coordinationv1.Lease, pod string) *coordinationv1.Lease {
		metav1.SetMetaDataAnnotation(&l.ObjectMeta, contract.AnnotationPod, pod)
		return l
	}
	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: "example"}}
	ring.Spec.ShardNamespaces = []string{"default", "more"}

	part := ringstatus.Of(ring, []*coordinationv1.Lease{
		at(held("default", "slot-1"), "x-b"), at(stopping("default", "slot-0"), "x-a"),
		at(held("default", "same"), "same"), held("default", "silent"), at(held("default", "wrong"), "Not A Pod"),
		at(free("default", "left"), "x-c"), at(held("tenant", "slot-2"), "x-d"), at(held("tenant", "slot-1"),
			"x-e"), at(free("more", "slot-0"), "x-f"),
		at(held("default", "twice"), "x-g"), at(held("more", "twice"), "x-h"),
	}, nil, "")
	require.Equal(t, []v1alpha1.ShardHolder{{Shard: "slot-0", Pod: "x-a"}, {Shard: "slot-1", Pod: "x-b"}}, part.Holders)
}

// Only people read the holders, so the status stays small, also with a fence.
func TestManyHolders(t *testing.T) {
	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: "example"}}

	var leases []*coordinationv1.Lease

	for i := range 1000 {
		l := held("default", fmt.Sprintf("slot-%d", i))
		metav1.SetMetaDataAnnotation(&l.ObjectMeta, contract.AnnotationPod, fmt.Sprintf("x-%d", i))
		leases = append(leases, l)
	}

	ring.Spec.Fence = &v1alpha1.Fence{Mode: v1alpha1.FenceEnforce}
	require.Len(t, ringstatus.Of(ring, leases, nil, "").Holders, 256)
}

// flood returns the Leases of five shards that were created after as many as a ring may have.
func flood() []*coordinationv1.Lease {
	leases := make([]*coordinationv1.Lease, 0, membership.MaxShards+5)

	for i := range membership.MaxShards + 5 {
		l := held("default", fmt.Sprintf("shard-%05d", membership.MaxShards+5-i))
		l.CreationTimestamp = metav1.Unix(int64(1_700_000_000+i), 0)
		leases = append(leases, l)
	}

	return leases
}
