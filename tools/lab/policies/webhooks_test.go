package policies_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// registrable waits until the policies know the ring.
func (p *policies) registrable(assigner client.Client) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return creating(p.t, assigner, p.configuration())() == nil }, time.Minute, 50*time.Millisecond,
		"the policies should know the ring")
}

func TestWebhooksGoWithTheirRings(t *testing.T) {
	type configuration = *admissionregistrationv1.MutatingWebhookConfiguration

	p := newPolicies(t)
	assigner := p.service("assigner")
	p.describe(map[string]string{"namespaces." + p.ring.Name: p.shards, "namespaces.untold": ""})
	p.registrable(assigner)

	// A second owner would keep a configuration whose ring is gone, and so would a version that no API server serves.
	namespace := metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: p.shards, UID: "1"}
	p.refused(creating(t, assigner, p.configuration(func(c configuration) {
		c.Labels[contract.LabelClusterRing], c.OwnerReferences[0].Name = "untold", "untold" // so that only one of the policies refuses it
		c.OwnerReferences = append(c.OwnerReferences, namespace)
	})), "the only owner")
	p.refused(creating(t, assigner, p.configuration(func(c configuration) { c.OwnerReferences[0].APIVersion = "sharding.timebertt.dev/v9" })), "the only owner")
	p.refused(creating(t, assigner, p.configuration(func(c configuration) { c.OwnerReferences[0].UID = "other" })), "must have the uid of that ring")
	p.refused(creating(t, assigner, p.configuration(func(c configuration) {
		c.Labels[contract.LabelClusterRing], c.OwnerReferences[0].Name = "none", "none"
		c.Webhooks[0].Rules[0].Resources = []string{"pods", "secrets"}
	})), "contains the ring of this webhook configuration")
}

func TestWebhooksAreCalledInNamespacesOfTheirRings(t *testing.T) {
	type configuration = *admissionregistrationv1.MutatingWebhookConfiguration

	p := newPolicies(t)
	assigner := p.service("assigner")
	p.registrable(assigner)

	selector := func(s *metav1.LabelSelector) func() error {
		return creating(t, assigner, p.configuration(func(c configuration) { c.Webhooks[0].NamespaceSelector = s }))
	}
	p.ring.Spec.NamespaceSelector = &metav1.LabelSelector{
		MatchLabels: map[string]string{"tenant": "a"},
		MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "stage", Operator: metav1.LabelSelectorOpIn, Values: []string{"dev", "test"}}, {Key: "old", Operator: metav1.LabelSelectorOpDoesNotExist},
		},
	}
	require.NoError(t, p.Client.Update(t.Context(), p.ring))
	p.refused(selector(nil), "must only be called in namespaces that spec.namespaceSelector of the ring selects")

	narrower := p.ring.Spec.NamespaceSelector.DeepCopy()
	narrower.MatchLabels["more"] = "x"
	narrower.MatchExpressions = append(narrower.MatchExpressions, metav1.LabelSelectorRequirement{Key: "control-plane", Operator: metav1.LabelSelectorOpDoesNotExist})
	require.NoError(t, selector(narrower)())
	require.NoError(t, selector(p.ring.Spec.NamespaceSelector)())

	for _, change := range []func(*metav1.LabelSelector){
		func(s *metav1.LabelSelector) { s.MatchLabels = nil },
		func(s *metav1.LabelSelector) { s.MatchLabels["tenant"] = "b" },
		func(s *metav1.LabelSelector) { s.MatchExpressions = s.MatchExpressions[:1] },
		func(s *metav1.LabelSelector) { s.MatchExpressions[0].Values = []string{"dev", "test", "prod"} },
	} {
		wider := p.ring.Spec.NamespaceSelector.DeepCopy()
		change(wider)
		p.refused(selector(wider), "must only be called in namespaces that spec.namespaceSelector of the ring selects")
	}

	p.ring.Spec.NamespaceSelector = nil
	require.NoError(t, p.Client.Update(t.Context(), p.ring))
	require.Eventually(t, func() bool { return selector(nil)() == nil }, time.Minute, 50*time.Millisecond, "the policies should know the new selector")
}

func TestWebhooksAreCalledForObjectsThatTheirRingsSelect(t *testing.T) {
	type configuration = *admissionregistrationv1.MutatingWebhookConfiguration

	p := newPolicies(t)
	assigner := p.service("assigner")
	p.registrable(assigner)

	p.ring.Spec.ObjectSelector = &metav1.LabelSelector{
		MatchLabels:      map[string]string{"operator": "a"},
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "example.org/stage", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"dev", "test"}}},
	}
	require.NoError(t, p.Client.Update(t.Context(), p.ring))

	var mains []string
	for _, r := range p.ring.Spec.Resources {
		mains = append(mains, strconv.Quote(r.Group+"/"+r.Resource))
	}

	others := " || !(request.resource.group + '/' + request.resource.resource in [" + strings.Join(mains, ", ") + "]) || request.operation == 'UPDATE' && \"" +
		contract.ShardLabel(p.ring.Name) + "\" in oldObject.metadata.?labels.orValue({})"
	operator := `("operator" in object.metadata.?labels.orValue({}) && object.metadata.labels["operator"] in ["a"])`
	stage := `!("example.org/stage" in object.metadata.?labels.orValue({}) && object.metadata.labels["example.org/stage"] in ["dev", "test"])`

	called := func(expressions ...string) func() error {
		return creating(t, assigner, p.configuration(func(c configuration) {
			for i, e := range expressions {
				c.Webhooks[0].MatchConditions = append(c.Webhooks[0].MatchConditions, admissionregistrationv1.MatchCondition{Name: "selected-" + strconv.Itoa(i), Expression: e})
			}
		}))
	}

	const refusal = "must only be called for objects that spec.objectSelector of the ring selects"

	p.refused(called(), refusal)
	require.NoError(t, called(operator+others, stage+others)())
	require.NoError(t, called(stage+others, "request.userInfo.username != 'x'", operator+others)(), "what narrows it more stays")

	for _, wider := range [][]string{
		{operator + others},
		{operator + others + " || true", stage + others},
		{"true || " + operator + others, stage + others},
		{`("operator" in object.metadata.?labels.orValue({}) && object.metadata.labels["operator"] in ["a", "b"])` + others, stage + others},
		{operator + strings.ReplaceAll(others, contract.ShardLabel(p.ring.Name), "name"), stage + others},
	} {
		p.refused(called(wider...), refusal)
	}
}

// configuration is a webhook configuration as the assigner writes it.
func (p *policies) configuration(change ...func(*admissionregistrationv1.MutatingWebhookConfiguration)) *admissionregistrationv1.MutatingWebhookConfiguration {
	c := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{
			Name: contract.WebhookConfigurationName(p.ring.Name), Labels: map[string]string{contract.LabelClusterRing: p.ring.Name},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "ClusterRing", Name: p.ring.Name, UID: p.ring.UID,
			}},
		},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: contract.WebhookName, FailurePolicy: ptr.To(admissionregistrationv1.Ignore), TimeoutSeconds: ptr.To[int32](5),
			SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				Service: &admissionregistrationv1.ServiceReference{Namespace: contract.SystemNamespace, Name: "assigner"},
			},
			ObjectSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
				Key: contract.ShardLabel(p.ring.Name), Operator: metav1.LabelSelectorOpDoesNotExist,
			}}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"*"}, Resources: []string{"configmaps"}},
			}},
		}},
	}

	for _, f := range change {
		f(c)
	}

	return c
}
