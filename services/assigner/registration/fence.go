package registration

import (
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// Fence returns the binding that makes the API server apply the policy [contract.FencePolicyName] to the resources of a ring, including
// all fields that the API server would default. It returns nil if the ring's fence is off, or if none of its resources is served.
//
// What the fence allows is in the policy, which an administrator installs. The assigner writes only bindings, because no admission policy can
// restrict who writes which policy. RBAC restricts it to the bindings of certain rings, by their names.
func Fence(ring *v1alpha1.ClusterRing, set *resources.Set) *admissionregistrationv1.ValidatingAdmissionPolicyBinding {
	rules := fencedResources(set)
	if ring.Spec.FenceMode() == v1alpha1.FenceOff || len(rules) == 0 {
		return nil
	}

	actions := []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}
	if ring.Spec.FenceMode() == v1alpha1.FenceAudit {
		actions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Warn, admissionregistrationv1.Audit}
	}

	return &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicyBinding"},
		ObjectMeta: metav1.ObjectMeta{
			Name:            contract.FenceName(ring.Name),
			Labels:          map[string]string{contract.LabelClusterRing: ring.Name},
			OwnerReferences: ownedBy(ring),
		},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: contract.FencePolicyName,
			ParamRef: &admissionregistrationv1.ParamRef{
				Name: contract.FenceName(ring.Name),
				// Users' writes must not depend on the lease monitor.
				ParameterNotFoundAction: ptr.To(admissionregistrationv1.AllowAction),
			},
			MatchResources: &admissionregistrationv1.MatchResources{
				NamespaceSelector: ring.Spec.EffectiveNamespaceSelector(),
				ObjectSelector:    &metav1.LabelSelector{},
				ResourceRules:     rules,
				MatchPolicy:       ptr.To(admissionregistrationv1.Equivalent),
			},
			ValidationActions: actions,
		},
	}
}

// fencedResources selects the objects of every served resource of the ring, and updates of their subresources. Others create a subresource to
// evict or bind a Pod, for example, which is no write to an object.
func fencedResources(set *resources.Set) []admissionregistrationv1.NamedRuleWithOperations {
	var out []admissionregistrationv1.NamedRuleWithOperations

	for _, r := range slices.Concat(set.Main(), set.Controlled()) {
		for _, rule := range []struct {
			resource   string
			operations []admissionregistrationv1.OperationType
		}{
			{r.GVR.Resource, []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update, admissionregistrationv1.Delete}},
			{r.GVR.Resource + "/*", []admissionregistrationv1.OperationType{admissionregistrationv1.Update}},
		} {
			out = append(out, admissionregistrationv1.NamedRuleWithOperations{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
				Operations: rule.operations,
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{r.GVR.Group}, APIVersions: []string{"*"}, Resources: []string{rule.resource},
					Scope: ptr.To(admissionregistrationv1.AllScopes),
				},
			}})
		}
	}

	return out
}
