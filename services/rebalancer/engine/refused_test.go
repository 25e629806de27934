package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// requires makes the API server refuse ConfigMaps of the namespace without the label, and waits until it does. The result ends that.
func (w *meddled) requires(label, message string, of client.Object) (end func()) {
	w.Helper()

	rules := []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"*"}, Resources: []string{"configmaps"}},
	}}}
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: w.ns},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				ResourceRules:     rules,
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": w.ns}},
			},
			Validations: []admissionregistrationv1.Validation{{
				Expression: fmt.Sprintf("object.metadata.?labels[?%q].orValue('') != ''", label), Message: message,
			}},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: w.ns},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: w.ns, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	touch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`))

	require.NoError(w, w.client.Create(w.Context(), policy))
	require.NoError(w, w.client.Create(w.Context(), binding))
	w.await(func() bool { return w.client.Patch(w.Context(), of, touch, client.DryRunAll) != nil }, "the policy should apply")

	return func() {
		w.Helper()
		require.NoError(w, w.client.Delete(w.Context(), binding))
		require.NoError(w, w.client.Delete(w.Context(), policy))
		w.await(func() bool { return w.client.Patch(w.Context(), of, touch, client.DryRunAll) == nil }, "the policy should apply no longer")
	}
}

// A policy refuses old objects of a resource, more than the table stores. The others move as usual, and so do all when the policy is gone. Until then,
// the report counts them, and contains the words of the policy.
func TestObjectsThatAreRefusedHinderNoOther(t *testing.T) {
	const n, failing = 40, 10

	w := newMeddled(t, byHand)
	w.e.table = work.New(work.Limits{
		Workers: 1000, Drains: 100, PerShard: 100, DrainTimeout: time.Minute, Active: failing, Parked: failing,
	})

	refused := w.many("refused", "lost", n)
	others := w.many("others", "lost", n)
	fresh := w.owner("fresh", "")

	for _, o := range append(others, fresh) {
		w.relabel(o, map[string]any{"team": "x"})
	}

	end := w.requires("team", "The label team is required.", refused[0])

	w.e.SetTarget(w.target)
	w.run()

	for _, o := range append(others, fresh) {
		w.eventually(func() bool { return !w.placed(o, "lost", false) && !w.placed(o, "", false) }, "%s should move", o.GetName())
	}

	w.eventually(func() bool { return w.e.Report().Failing >= failing }, "the table should be full of those that are refused")

	later := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "later", Labels: map[string]string{"team": "x"}}}
	require.NoError(t, w.client.Create(t.Context(), later))
	w.eventually(func() bool { return !w.placed(later, "", false) }, "it should get a shard")

	w.eventually(func() bool { r := w.e.Report(); return r.Failing == failing && r.More }, "there should be more that are refused")
	require.Contains(t, w.e.Report().FailingExample, "The label team is required.")
	require.False(t, w.e.Report().Converged)

	end()

	for _, o := range refused {
		w.eventually(func() bool { return !w.placed(o, "lost", false) }, "%s should move", o.GetName())
	}

	w.converges()
}
