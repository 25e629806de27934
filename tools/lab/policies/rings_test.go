package policies_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func ringOf(name string, selector *metav1.LabelSelector, resources ...v1alpha1.RingResource) *v1alpha1.ClusterRing {
	return &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.ClusterRingSpec{Resources: resources, NamespaceSelector: selector},
	}
}

func controls(resources ...string) []v1alpha1.ControlledResource {
	list := make([]v1alpha1.ControlledResource, 0, len(resources))
	for _, r := range resources {
		list = append(list, v1alpha1.ControlledResource{Resource: r})
	}

	return list
}

func expression(operator metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: operator, Values: values}},
	}
}

// The API server refuses by itself what no service could work with.
func TestInvalidRings(t *testing.T) {
	p := localplane.Shared(t)
	pods := v1alpha1.RingResource{Resource: "pods"}
	both := v1alpha1.RingResource{Group: "apps", Resource: "replicasets", ControlledResources: controls("pods")}

	for name, tc := range map[string]struct {
		ring *v1alpha1.ClusterRing
		want string
	}{
		"no resource":           {ringOf("r", nil, []v1alpha1.RingResource{}...), "should have at least 1 items"},
		"no list of resources":  {ringOf("r", nil), "spec.resources: Required value"},
		"main twice":            {ringOf("r", nil, pods, pods), "Duplicate value"},
		"controlled twice":      {ringOf("r", nil, v1alpha1.RingResource{Resource: "a", ControlledResources: controls("b", "b")}), "Duplicate value"},
		"main and controlled":   {ringOf("r", nil, pods, both), "must not be listed both as a main and as a controlled resource"},
		"its own controlled":    {ringOf("r", nil, v1alpha1.RingResource{Resource: "a", ControlledResources: controls("a")}), "must not be listed both"},
		"name too long":         {ringOf(strings.Repeat("a", 64), nil, pods), "at most 63 characters"},
		"name with capitals":    {ringOf("Ring", nil, pods), "metadata.name"},
		"group with a slash":    {ringOf("r", nil, v1alpha1.RingResource{Group: "a/v1", Resource: "b"}), "spec.resources[0].group"},
		"resource with a dot":   {ringOf("r", nil, v1alpha1.RingResource{Resource: "deployments.apps"}), "spec.resources[0].resource"},
		"kind as resource":      {ringOf("r", nil, v1alpha1.RingResource{Resource: "Pod"}), "spec.resources[0].resource"},
		"subresource":           {ringOf("r", nil, v1alpha1.RingResource{Resource: "pods/status"}), "spec.resources[0].resource"},
		"empty resource":        {ringOf("r", nil, v1alpha1.RingResource{}), "spec.resources[0].resource"},
		"invalid controlled":    {ringOf("r", nil, v1alpha1.RingResource{Resource: "a", ControlledResources: controls("B")}), "controlledResources[0].resource"},
		"unknown operator":      {ringOf("r", expression("Near", "v"), pods), "needs the operator In or NotIn with values"},
		"operator but no value": {ringOf("r", expression(metav1.LabelSelectorOpIn), pods), "needs the operator In or NotIn with values"},
		"selector value":        {ringOf("r", &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a b"}}, pods), "namespaceSelector.matchLabels.team"},
		"long selector value":   {ringOf("r", &metav1.LabelSelector{MatchLabels: map[string]string{"k": strings.Repeat("a", 64)}}, pods), "Too long"},
		"expression value":      {ringOf("r", expression(metav1.LabelSelectorOpIn, "a", "b/c"), pods), "namespaceSelector.matchExpressions[0].values[1]"},
		"expression key":        {ringOf("r", &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a b", Operator: "Exists"}}}, pods), "namespaceSelector.matchExpressions[0].key"},
		"Leases":                {ringOf("r", nil, v1alpha1.RingResource{Group: "coordination.k8s.io", Resource: "leases"}), "cannot shard Leases"},
		"Nodes":                 {ringOf("r", nil, v1alpha1.RingResource{Resource: "nodes"}), "cannot shard Leases"},
		"Events":                {ringOf("r", nil, v1alpha1.RingResource{Group: "events.k8s.io", Resource: "events"}), "cannot shard Leases"},
		"rights":                {ringOf("r", nil, v1alpha1.RingResource{Group: "rbac.authorization.k8s.io", Resource: "roles"}), "cannot shard Leases"},
		"webhooks":              {ringOf("r", nil, v1alpha1.RingResource{Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations"}), "cannot shard Leases"},
		"rings":                 {ringOf("r", nil, v1alpha1.RingResource{Group: "sharding.timebertt.dev", Resource: "clusterrings"}), "cannot shard Leases"},
		"controlled Events":     {ringOf("r", nil, v1alpha1.RingResource{Resource: "a", ControlledResources: controls("events")}), "cannot shard Leases"},
		"shards twice":          {shardsIn("a", "a"), "Duplicate value"},
		"no namespace's name":   {shardsIn("a b"), "spec.shardNamespaces[0]"},
		"value but no operator": {ringOf("r", expression(metav1.LabelSelectorOpExists, "v"), pods), "needs the operator In or NotIn with values"},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorContains(t, p.Client.Create(t.Context(), tc.ring, client.DryRunAll), tc.want)
		})
	}
}

// shardsIn returns a ring whose shards are in these namespaces.
func shardsIn(namespaces ...string) *v1alpha1.ClusterRing {
	ring := ringOf("r", nil, v1alpha1.RingResource{Resource: "pods"})
	ring.Spec.ShardNamespaces = namespaces

	return ring
}

func TestValidRings(t *testing.T) {
	p := localplane.Shared(t)
	pods := v1alpha1.RingResource{Resource: "pods"}

	for name, ring := range map[string]*v1alpha1.ClusterRing{
		"longest name":   ringOf(strings.Repeat("a", 63), nil, pods),
		"name with dots": ringOf("a.b-c", nil, pods),
		"same resource of another group": ringOf("r", nil,
			v1alpha1.RingResource{Group: "apps", Resource: "deployments", ControlledResources: controls("pods", "secrets")},
			v1alpha1.RingResource{Group: "batch", Resource: "jobs", ControlledResources: controls("configmaps")},
			v1alpha1.RingResource{Group: "example.com", Resource: "pods"}),
		"in":     ringOf("r", expression(metav1.LabelSelectorOpNotIn, "a", "b"), pods),
		"labels": ringOf("r", &metav1.LabelSelector{MatchLabels: map[string]string{"a": "", "example.com/Team_1": "x.Y-z_9"}}, pods),
		"keys": ringOf("r", &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: strings.Repeat("a.", 126) + "a/" + strings.Repeat("K", 63), Operator: "Exists"}, {Key: "K_1.x", Operator: "In", Values: []string{"", "V"}},
		}}, pods),
		"does not exist": ringOf("r", expression(metav1.LabelSelectorOpDoesNotExist), pods),
		"no selector":    ringOf("r", &metav1.LabelSelector{}, pods),
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, p.Client.Create(t.Context(), ring, client.DryRunAll))
		})
	}
}
