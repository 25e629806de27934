package policies_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

const ownLabel = "cloudapi.team-orca.dev/shard"

// labelled returns a ring with a spec.shardLabel.
func labelled(name, label string) *v1alpha1.ClusterRing {
	ring := ringOf(name, nil, v1alpha1.RingResource{Resource: "pods"})
	ring.Spec.ShardLabel = label

	return ring
}

// longestDomain is as long as the domain of a label key may be.
var longestDomain = strings.Repeat("a.", 126) + "a"

// TestShardLabels: the API server and the library for shards accept the same keys.
func TestShardLabels(t *testing.T) {
	p := localplane.Shared(t)

	for label, want := range map[string]string{
		ownLabel:                                 "",
		"a/B":                                    "",
		"example.com/Shard_1.x":                  "",
		"notkubernetes.io/shard":                 "",
		"kubernetes.io.example.com/shard":        "",
		"example.com/" + strings.Repeat("a", 54): "",
		longestDomain + "/" + strings.Repeat("a", 54): "",
		"example.com/drain":                           "",

		"shard":                                  "spec.shardLabel",
		"/shard":                                 "spec.shardLabel",
		"example.com/":                           "spec.shardLabel",
		"example.com/a/b":                        "spec.shardLabel",
		"Example.com/shard":                      "spec.shardLabel",
		"example..com/shard":                     "spec.shardLabel",
		"example.com/-shard":                     "spec.shardLabel",
		"example.com/sh ard":                     "spec.shardLabel",
		"example.com/" + strings.Repeat("a", 55): "-handover is added to the key",
		"a" + longestDomain + "/a":               "at most 253 characters",
		"kubernetes.io/shard":                    "use a domain of your own",
		"apps.kubernetes.io/shard":               "use a domain of your own",
		"k8s.io/shard":                           "use a domain of your own",
		"node.k8s.io/shard":                      "use a domain of your own",
		"sharding.timebertt.dev/shard":           "use a domain of your own",
		"shard.alpha.sharding.timebertt.dev/clusterring-50d858e0-example": "use a domain of your own",
		"example.com/shard-drain":    "could be one that follows from the shardLabel of another ring",
		"example.com/shard-handover": "could be one that follows from the shardLabel of another ring",
	} {
		t.Run(label, func(t *testing.T) {
			err := p.Client.Create(t.Context(), labelled("r", label), client.DryRunAll)
			problems := contract.ValidateShardLabel(label)

			if want == "" {
				require.NoError(t, err)
				require.Empty(t, problems)

				keys := contract.LabelKeysOf("r", label)
				for _, key := range []string{keys.Shard, keys.Drain, keys.Handover} {
					require.Empty(t, validation.IsQualifiedName(key))
				}

				return
			}

			require.ErrorContains(t, err, want)
			require.NotEmpty(t, problems)
		})
	}
}

// TestShardLabelIsImmutable: objects carry the label.
func TestShardLabelIsImmutable(t *testing.T) {
	p := localplane.Shared(t)

	for name, labels := range map[string][2]string{"added": {"", ownLabel}, "changed": {ownLabel, "example.com/other"}, "removed": {ownLabel, ""}} {
		t.Run(name, func(t *testing.T) {
			ring := labelled("immutable-"+name, labels[0])
			require.NoError(t, p.Client.Create(t.Context(), ring))
			t.Cleanup(func() { require.NoError(t, p.Client.Delete(context.WithoutCancel(t.Context()), ring)) })

			ring.Spec.ActiveShards = new(int32(1))
			require.NoError(t, p.Client.Update(t.Context(), ring), "anything else may change")

			ring.Spec.ShardLabel = labels[1]
			require.ErrorContains(t, p.Client.Update(t.Context(), ring), "spec.shardLabel cannot be added, changed, or removed")
		})
	}
}

func TestShardNames(t *testing.T) {
	p := localplane.Shared(t)
	many := make([]string, 1001)

	for i := range many {
		many[i] = fmt.Sprint("shard-", i)
	}

	for name, tc := range map[string]struct {
		names []string
		want  string
	}{
		"valid":    {[]string{"blue", "green-1", "a.b"}, ""},
		"most":     {many[:1000], ""},
		"too many": {many, "must have at most 1000 items"},
		"twice":    {[]string{"blue", "blue"}, "Duplicate value"},
		"capitals": {[]string{"Blue"}, "spec.shardNames[0]"},
		"empty":    {[]string{""}, "spec.shardNames[0]"},
		"long":     {[]string{strings.Repeat("a", 64)}, "spec.shardNames[0]"},
		"reserved": {[]string{contract.LeaseControllerIdentity}, "signs Leases that it has taken"},
	} {
		t.Run(name, func(t *testing.T) {
			ring := labelled("r", "")
			ring.Spec.ShardNames = tc.names

			if err := p.Client.Create(t.Context(), ring, client.DryRunAll); tc.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.want)
			}
		})
	}
}

// TestNamedShardsAreSlots: of the Pods of a ring, any may hold a Lease with a name that the ring lists, one at a time.
func TestNamedShardsAreSlots(t *testing.T) {
	p := newPolicies(t)
	p.describe(map[string]string{"namespaces." + p.ring.Name: p.shards, "names." + p.ring.Name: "blue\ngreen"})

	named := func(name, pod string) *coordinationv1.Lease {
		return p.lease(p.shards, name, func(l *coordinationv1.Lease) { l.Annotations = map[string]string{contract.AnnotationPod: pod} })
	}
	a, b := p.as(p.shards, "default", "a"), p.as(p.shards, "default", "b")

	p.refused(creating(t, a, named("red", "a")), "list their names in spec.shardNames")
	p.refused(creating(t, a, named("blu", "a")), "only Pod blu of namespace")
	p.refused(creating(t, a, named("blue", "b")), "only Pod")
	p.refused(creating(t, a, p.lease(p.shards, "blue")), "only Pod")

	held := named("blue", "a")
	require.Eventually(t, func() bool { return a.Create(t.Context(), held) == nil }, soon, tick)
	require.NoError(t, patching(t, a, held, `{"spec":{"holderIdentity":""}}`)())
	p.refused(patching(t, b, held, `{"spec":{"renewTime":"2030-01-01T00:00:00.000000Z"}}`), "only Pod")
	require.NoError(t, patching(t, b, held, `{"metadata":{"annotations":{"`+contract.AnnotationPod+`":"b"}}}`)())

	// A Pod with this name that is no slot keeps its Lease.
	stateful := p.lease(p.shards, "green")
	require.NoError(t, p.as(p.shards, "default", "green").Create(t.Context(), stateful))
	p.refused(patching(t, b, stateful, `{"metadata":{"annotations":{"`+contract.AnnotationPod+`":"b"}}}`), "only Pod")
}

// TestShardsFollowTheLabelOfTheirRing: a shard that selects its objects by another label would do nothing, so it cannot hold its Lease.
func TestShardsFollowTheLabelOfTheirRing(t *testing.T) {
	p := newPolicies(t)
	pod := p.as(p.shards, "default", "a")
	says := func(label string) *coordinationv1.Lease {
		return p.lease(p.shards, "a", func(l *coordinationv1.Lease) {
			if label != "" {
				l.Annotations = map[string]string{contract.AnnotationShardLabel: label}
			}
		})
	}

	p.refused(creating(t, pod, says(ownLabel)), "shard a selects its objects by the label "+ownLabel+", but ring "+p.ring.Name+" has no spec.shardLabel")
	require.NoError(t, creating(t, pod, says(""))())
	require.NoError(t, creating(t, p.Client, says(ownLabel))(), "administrators of rings may")

	p.describe(map[string]string{"namespaces." + p.ring.Name: p.shards, "label." + p.ring.Name: ownLabel})
	p.refused(creating(t, pod, says("")), "shard a selects its objects by the default label, but ring "+p.ring.Name+" has spec.shardLabel "+ownLabel)
	p.refused(creating(t, pod, says("example.com/other")), "by the label example.com/other, but ring "+p.ring.Name+" has spec.shardLabel "+ownLabel)

	held := says(ownLabel)
	require.NoError(t, pod.Create(t.Context(), held))
	require.NoError(t, patching(t, pod, held, `{"spec":{"holderIdentity":""}}`)())
	p.refused(patching(t, pod, held, `{"metadata":{"annotations":null}}`), "by the default label")

	// A ring that does not exist says nothing.
	require.NoError(t, creating(t, p.as(p.shards, "default", "b"), p.lease(p.shards, "b", func(l *coordinationv1.Lease) {
		l.Labels[contract.LabelClusterRing], l.Annotations = "none", map[string]string{contract.AnnotationShardLabel: ownLabel}
	}))())
}

// TestRebalancerNeedsPermissionForOtherLabels: whoever may create a ring cannot make the rebalancer change a label of somebody else.
func TestRebalancerNeedsPermissionForOtherLabels(t *testing.T) {
	p := newPolicies(t)
	rebalancer := p.service("rebalancer")
	label := p.shards + ".example.com/shard"
	rules := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"patch"}}}
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: p.shards, Labels: map[string]string{contract.LabelAggregateToRebalancer: "true"}}, Rules: rules,
	}
	p.create(role)
	require.NoError(t, p.Aggregate(t.Context()))

	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.tenant, Name: "object", Labels: map[string]string{"app": "a"}}}
	p.create(object)

	own := `{"metadata":{"labels":{"` + label + `":"a","` + label + `-drain":"true"},"annotations":{"` + label + `-handover":"{}"}}}`
	p.refused(patching(t, rebalancer, object, own), "if "+label+" is spec.shardLabel of a ring, grant the verb write on shardlabels.sharding.timebertt.dev with this name")
	p.refused(patching(t, rebalancer, object, `{"metadata":{"annotations":{"`+label+`-handover":"{}"}}}`), "may not change annotation "+label+"-handover; ")

	role.Rules = append(role.Rules, rbacv1.PolicyRule{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{contract.ResourceShardLabels}, ResourceNames: []string{label}, Verbs: []string{"write"},
	})
	require.NoError(t, p.Client.Update(t.Context(), role))
	require.NoError(t, p.Aggregate(t.Context()))
	require.Eventually(t, func() bool { return patching(t, rebalancer, object, own)() == nil }, soon, tick)
	require.NoError(t, patching(t, rebalancer, object, `{"metadata":{"labels":{"`+label+`-drain":"true"}}}`)())
	require.NoError(t, patching(t, rebalancer, object, `{"metadata":{"annotations":{"`+label+`-handover":"{}"}}}`)())

	for patch, message := range map[string]string{
		`{"metadata":{"labels":{"` + label + `":"a","app":"b"}}}`:                      "may not change label " + label + ", label app;",
		`{"metadata":{"labels":{"` + label + `":"a","example.com/other":"b"}}}`:        "label example.com/other",
		`{"metadata":{"labels":{"` + label + `":"a"},"annotations":{"x":"y"}}}`:        "may not change annotation x;",
		`{"metadata":{"labels":{"` + label + `-handover":"a"}}}`:                       "may not change label " + label + "-handover;",
		`{"metadata":{"annotations":{"` + label + `":"a"}}}`:                           "may not change annotation " + label + ";",
		`{"metadata":{"labels":{"` + label + `":"a"}},"data":{"k":"v"}}`:               "may not change data;",
		`{"metadata":{"labels":{"` + label + `":"a"},"finalizers":["example.com/x"]}}`: "may not change finalizer example.com/x;",
	} {
		p.refused(patching(t, rebalancer, object, patch), message)
	}

	p.refused(patching(t, rebalancer, p.ring, own), "may not change label")
}

// TestWebhooksSelectByTheLabelOfTheirRing: otherwise, a ring's webhook would be called for objects that have a shard.
func TestWebhooksSelectByTheLabelOfTheirRing(t *testing.T) {
	p := newPolicies(t)
	assigner := p.service("assigner")
	selects := func(key string) func(*admissionregistrationv1.MutatingWebhookConfiguration) {
		return func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Webhooks[0].ObjectSelector.MatchExpressions[0].Key = key
		}
	}

	p.describe(map[string]string{"namespaces." + p.ring.Name: p.shards, "namespaces.own-" + p.shards: ""})
	p.registrable(assigner)
	p.refused(creating(t, assigner, p.configuration(selects(ownLabel))), "must select only objects without a shard of the ring")

	own := labelled("own-"+p.shards, "own."+ownLabel)
	own.Spec.Resources[0].Resource = "configmaps"
	p.create(own)
	t.Cleanup(func() { require.NoError(t, p.Client.Delete(context.WithoutCancel(t.Context()), own)) })

	guarded := p.ring
	p.ring = own

	defer func() { p.ring = guarded }()

	p.refused(creating(t, assigner, p.configuration()), "must select only objects without a shard of the ring")
	p.refused(creating(t, assigner, p.configuration(selects(ownLabel))), "must select only objects without a shard of the ring")

	err := creating(t, assigner, p.configuration(selects("own."+ownLabel)))()
	require.False(t, apierrors.IsForbidden(err), err)
	require.NoError(t, err)
}
