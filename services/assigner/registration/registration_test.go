package registration

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"gotest.tools/v3/golden"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
)

const secretOfTests = "00112233445566778899aabbccddeeff"

const rebalancer = "system:serviceaccount:sharding-system:rebalancer"

var inService = Target{
	Service: admissionregistrationv1.ServiceReference{Namespace: "sharding-system", Name: "assigner",
		Port: ptr.To[int32](443)},
	RebalancerUsername: rebalancer,
	TimeoutSeconds:     1,
	Port:               "9443",
}

func mapper() *meta.DefaultRESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for _, k := range []schema.GroupVersionKind{
		{Group: "example.org", Version: "v1", Kind: "Website"},
		{Version: "v1", Kind: "Pod"},
		{Version: "v1", Kind: "Secret"},
		{Group: "apps", Version: "v1", Kind: "Deployment"},
	} {
		m.Add(k, meta.RESTScopeNamespace)
	}

	return m
}

func ringWith(name string, rr ...v1alpha1.RingResource) *v1alpha1.ClusterRing {
	return &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "ebd0b1a5"},
		Spec:       v1alpha1.ClusterRingSpec{Resources: rr},
	}
}

// TestConfiguration compares what is registered with the files that a reviewer has read.
func TestConfiguration(t *testing.T) {
	url := Target{URL: "https://127.0.0.1:9443/", InjectCAFrom: "sharding-system/assigner", TimeoutSeconds: 2,
		RebalancerUsername: "somebody"}

	selected := ringWith("selected", v1alpha1.RingResource{Resource: "pods"})
	selected.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}

	for _, c := range []struct {
		file   string
		ring   *v1alpha1.ClusterRing
		target Target
	}{
		{"service", ringWith("example",
			v1alpha1.RingResource{Group: "example.org", Resource: "websites", ControlledResources: []v1alpha1.ControlledResource{
				{Group: "apps", Resource: "deployments"}, {Resource: "secrets"}, {Resource: "missing"},
			}},
			v1alpha1.RingResource{Resource: "pods"},
		), inService},
		{"url", selected, url},
		{"missing", ringWith("missing", v1alpha1.RingResource{
			Resource: "nothing", ControlledResources: []v1alpha1.ControlledResource{{Resource: "secrets"}},
		}), url},
	} {
		t.Run(c.file, func(t *testing.T) {
			golden.Assert(t, encoded(t, Configuration(c.ring, resources.Resolve(mapper(), c.ring.Spec), c.target,
				secretOfTests)), c.file+".json")
		})
	}
}

func encoded(t *testing.T, what any) string {
	t.Helper()

	var got bytes.Buffer

	encoder := json.NewEncoder(&got)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	require.NoError(t, encoder.Encode(what))

	return got.String()
}

func TestFence(t *testing.T) {
	ring := ringWith("example", v1alpha1.RingResource{Group: "example.org", Resource: "websites",
		ControlledResources: []v1alpha1.ControlledResource{
			{Resource: "secrets"}, {Resource: "missing"},
		}})
	set := resources.Resolve(mapper(), ring.Spec)
	require.Nil(t, Fence(ring, set))

	ring.Spec.Fence = &v1alpha1.Fence{Mode: v1alpha1.FenceOff}
	require.Nil(t, Fence(ring, set))

	ring.Spec.Fence.Mode = v1alpha1.FenceEnforce
	golden.Assert(t, encoded(t, Fence(ring, set)), "fence.json")

	ring.Spec.Fence.Mode = v1alpha1.FenceAudit
	require.Equal(t, []admissionregistrationv1.ValidationAction{admissionregistrationv1.Warn,
		admissionregistrationv1.Audit}, Fence(ring, set).Spec.ValidationActions)
	require.Nil(t, Fence(ring, resources.Resolve(meta.NewDefaultRESTMapper(nil), ring.Spec)), "nothing is served")
}

// What narrows stays, until the ring changes.
func TestMerge(t *testing.T) {
	ring := ringWith("example", v1alpha1.RingResource{Resource: "pods"})
	set := resources.Resolve(mapper(), ring.Spec)

	want := Configuration(ring, set, inService, secretOfTests)

	here := metav1.LabelSelectorRequirement{Key: "here", Operator: metav1.LabelSelectorOpExists}
	more := admissionregistrationv1.MatchCondition{Name: "more", Expression: "false"}
	ours := admissionregistrationv1.MatchCondition{Name: "ours", Expression: "true"}

	want.Webhooks[0].MatchConditions = []admissionregistrationv1.MatchCondition{ours}
	have := want.DeepCopy()
	h := &have.Webhooks[0]
	h.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{here},
		MatchLabels: map[string]string{"x": "y"}}
	h.ObjectSelector.MatchExpressions = append(h.ObjectSelector.MatchExpressions, here)
	h.MatchConditions = []admissionregistrationv1.MatchCondition{more, {Name: "ours", Expression: "false"}}

	next := merge(have, want, true)
	require.Equal(t, append([]metav1.LabelSelectorRequirement{here},
		want.Webhooks[0].NamespaceSelector.MatchExpressions...),
		next.Webhooks[0].NamespaceSelector.MatchExpressions)
	require.Equal(t, map[string]string{"x": "y"}, next.Webhooks[0].NamespaceSelector.MatchLabels)
	require.Equal(t, h.ObjectSelector.MatchExpressions, next.Webhooks[0].ObjectSelector.MatchExpressions)
	require.Equal(t, []admissionregistrationv1.MatchCondition{more, ours}, next.Webhooks[0].MatchConditions)
	require.Equal(t, next, merge(next, want, true), "this is as it should be")
	require.Equal(t, want.Webhooks, merge(next, want, false).Webhooks)
}

func TestMessagesContainNoSecret(t *testing.T) {
	const path = `Post "https://assigner.sharding-system.svc:443/webhooks/sharder/clusterring/example/`

	require.Equal(t, path+`…?timeout=1s": EOF`, withoutSecrets(path+secretOfTests+`?timeout=1s": EOF`))
}

func TestTheMessageContainsWhatToOpen(t *testing.T) {
	require.Equal(t, "calls of API servers do not arrive at the assigner: context deadline exceeded. Allow API servers "+
		"to connect to port 443 of Service "+
		"sharding-system/assigner, which is TCP port 9443 of its Pods, in the firewall of the control plane, "+
		"NetworkPolicies, and the cluster network",
		inService.unreached("context deadline exceeded"))
}
