package policies_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// The assigner is asked about updates of objects with a shard only if they change the shard or the key.
func TestAssignerIsAskedAboutChangesOfLabels(t *testing.T) {
	p := newPolicies(t)
	assigner := p.service("assigner")

	p.describe(map[string]string{"namespaces." + p.ring.Name: p.shards})
	p.registrable(assigner)

	type configuration = *admissionregistrationv1.MutatingWebhookConfiguration

	labels := func(expression string, change ...func(*admissionregistrationv1.MutatingWebhook)) configuration {
		return p.configuration(func(c configuration) {
			w := &c.Webhooks[0]
			w.Name, w.ObjectSelector = contract.LabelsWebhookName, &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
				Key: contract.ShardLabel(p.ring.Name), Operator: metav1.LabelSelectorOpExists,
			}}}
			w.Rules[0].Operations = []admissionregistrationv1.OperationType{admissionregistrationv1.Update}
			w.Rules[0].Resources = append(w.Rules[0].Resources, w.Rules[0].Resources[0]+"/*")
			w.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "labels-change", Expression: expression}}

			for _, f := range change {
				f(w)
			}
		})
	}
	changes := func(keyed string) string {
		label := func(of, key string) string { return of + `.metadata.?labels[?"` + key + `"]` }
		was, is := label("oldObject", contract.ShardLabel(p.ring.Name)), label("object", contract.ShardLabel(p.ring.Name))
		next := label("oldObject", contract.DrainLabel(p.ring.Name))
		may := `authorizer.group("sharding.timebertt.dev").resource("clusterrings").name("` + p.ring.Name + `")`

		return `request.userInfo.username != "them" && (` + was + ` == ` + is + ` ? ` + keyed + ` : ` + was + `.orValue("") != "" && !(` + next +
			`.hasValue() && (!` + is + `.hasValue() || ` + next + ` == ` + is + `)) && !(` + may + `.check("relabel").allowed() && !` + may + `.check("*").allowed()))`
	}
	tenant := `(oldObject.metadata.?labels[?"example.com/tenant"] != object.metadata.?labels[?"example.com/tenant"])`
	only := "only be called for changes of the shard label of the ring, and of labels that it names as keys"

	require.NoError(t, creating(t, assigner, labels(changes("false")))())
	p.refused(creating(t, assigner, labels("true")), only)

	for _, prefix := range []string{`"a" != "b`, `true || request.userInfo.username != "them`, `request.userInfo.username != "" || "" == "`} {
		expression := strings.Replace(changes("false"), `request.userInfo.username != "them`, prefix, 1)
		p.refused(creating(t, assigner, labels(expression)), only)
	}

	p.refused(creating(t, assigner, labels(changes(tenant))), only)
	p.refused(creating(t, assigner, labels(changes("false"), func(w *admissionregistrationv1.MutatingWebhook) { w.Rules[0].Resources = []string{"pods/*"} })), "resources that the ring names")
	p.refused(creating(t, assigner, labels(changes("false"), func(w *admissionregistrationv1.MutatingWebhook) { w.Rules[0].Resources = []string{"*/*"} })), "resources") // two policies refuse it
	p.refused(creating(t, assigner, p.configuration(func(c configuration) { c.Webhooks[0].Rules[0].Resources[0] += "/*" })), "must name the resources")
	p.ring.Spec.Resources[0].Key = &v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: "example.com/tenant"}
	require.NoError(t, p.Client.Update(t.Context(), p.ring))
	require.Eventually(t, func() bool { return creating(t, assigner, labels(changes(tenant)))() == nil }, time.Minute, 50*time.Millisecond, "the policies should know the new key")
	p.refused(creating(t, assigner, labels(changes("false"))), only)
	p.refused(creating(t, assigner, labels(changes(tenant), func(w *admissionregistrationv1.MutatingWebhook) { w.ObjectSelector = nil })), only)
	p.refused(creating(t, assigner, labels(changes(tenant), func(w *admissionregistrationv1.MutatingWebhook) { w.ObjectSelector.MatchExpressions[0].Key = "app" })), only)
	p.refused(creating(t, assigner, labels(changes(tenant), func(w *admissionregistrationv1.MutatingWebhook) {
		w.Rules[0].Operations = []admissionregistrationv1.OperationType{admissionregistrationv1.Create}
	})), "only when objects are updated")
}
