// Package leaderfence makes admission policies that fence a leader-elected controller by its own Lease: the API server refuses writes by
// replicas that do not hold the Lease. It needs no service of ClusterRing, and no change of the controller.
//
// # What was refused
//
// A policy that reads who leads from anything but the Lease: only the Lease changes at the very moment at which leadership does.
package leaderfence

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Spec is what to fence. All fields but Audit are required.
type Spec struct {
	// Lease is the Lease of the leader election.
	Lease types.NamespacedName
	// ServiceAccounts are the accounts of the controller.
	ServiceAccounts []types.NamespacedName
	// Resources are the resources that only the leader may write.
	Resources []schema.GroupResource
	// Audit reports writes instead of refusing them.
	Audit bool
}

// Validate returns everything that is wrong with the specification, on one line, or nil.
func (s Spec) Validate() error {
	wrong := named(nil, "Lease", s.Lease)

	for _, account := range s.ServiceAccounts {
		wrong = named(wrong, "service account", account)
	}

	for _, r := range s.Resources {
		if r.Resource == "" || strings.ContainsAny(r.String(), "*/ ") {
			wrong = append(wrong, fmt.Sprintf("resource %q: name a plural and its group, such as websites.example.org", r))
		}

		if r == (schema.GroupResource{Group: coordinationv1.GroupName, Resource: "leases"}) {
			wrong = append(wrong, "resource leases.coordination.k8s.io: a replica must write the Lease to become the leader")
		}
	}

	if len(s.ServiceAccounts) == 0 {
		wrong = append(wrong, "name the service account of the controller")
	}

	if len(s.Resources) == 0 {
		wrong = append(wrong, "name the resources that only the leader may write")
	}

	if len(wrong) == 0 {
		return nil
	}

	return errors.New(strings.Join(wrong, "; "))
}

// named appends what is wrong with a name.
func named(wrong []string, what string, n types.NamespacedName) []string {
	if len(validation.IsDNS1123Label(n.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(n.Name)) > 0 {
		return append(wrong, fmt.Sprintf("%s %q: write NAMESPACE/NAME", what, strings.Trim(n.String(), "/")))
	}

	return wrong
}

// Objects returns the policy and its binding for a valid specification.
func Objects(s Spec) (*admissionregistrationv1.ValidatingAdmissionPolicy, *admissionregistrationv1.ValidatingAdmissionPolicyBinding) {
	name := "leader-fence." + s.Lease.Namespace + "." + s.Lease.Name
	group := admissionregistrationv1.SchemeGroupVersion.String()

	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: group, Kind: "ValidatingAdmissionPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			FailurePolicy:    new(admissionregistrationv1.Fail),
			ParamKind:        &admissionregistrationv1.ParamKind{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"},
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: rules(s.Resources)},
			MatchConditions: []admissionregistrationv1.MatchCondition{{
				Name: "by-the-controller", Expression: "request.userInfo.username in [" + usernames(s.ServiceAccounts) + "]",
			}},
			Variables: []admissionregistrationv1.Variable{
				{Name: "holder", Expression: "has(params.spec.holderIdentity) ? params.spec.holderIdentity : ''"},
				{Name: "pod", Expression: "has(request.userInfo.extra) && 'authentication.kubernetes.io/pod-name' in request.userInfo.extra ? " +
					"request.userInfo.extra['authentication.kubernetes.io/pod-name'][0] : ''"},
			},
			Validations: []admissionregistrationv1.Validation{{
				// The identity of a replica is its host name, often with an underscore and random characters.
				Expression: "variables.pod != '' && (variables.holder == variables.pod || variables.holder.startsWith(variables.pod + '_'))",
				Reason:     new(metav1.StatusReasonForbidden),
				MessageExpression: "variables.pod == '' ? 'the token of ' + request.userInfo.username + ' is bound to no Pod, so it is unknown which replica writes' : " +
					"'Lease " + s.Lease.String() + " is held by ' + (variables.holder == '' ? 'nobody' : variables.holder) + ', and this write comes from Pod ' + variables.pod",
			}},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: group, Kind: "ValidatingAdmissionPolicyBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name,
			ParamRef: &admissionregistrationv1.ParamRef{
				Namespace: s.Lease.Namespace, Name: s.Lease.Name,
				ParameterNotFoundAction: new(admissionregistrationv1.DenyAction), // nobody leads
			},
			ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}

	if s.Audit {
		binding.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Warn, admissionregistrationv1.Audit}
		policy.Spec.FailurePolicy = new(admissionregistrationv1.Ignore)
	}

	return policy, binding
}

// rules selects the resources and their subresources, one rule for each group.
func rules(all []schema.GroupResource) []admissionregistrationv1.NamedRuleWithOperations {
	var out []admissionregistrationv1.NamedRuleWithOperations

	for _, r := range all {
		i := slices.IndexFunc(out, func(rule admissionregistrationv1.NamedRuleWithOperations) bool { return rule.APIGroups[0] == r.Group })
		if i < 0 {
			i = len(out)
			out = append(out, admissionregistrationv1.NamedRuleWithOperations{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
				Operations: []admissionregistrationv1.OperationType{
					admissionregistrationv1.Create, admissionregistrationv1.Update, admissionregistrationv1.Delete,
				},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{r.Group}, APIVersions: []string{"*"}},
			}})
		}

		out[i].Resources = append(out[i].Resources, r.Resource, r.Resource+"/*")
	}

	return out
}

func usernames(accounts []types.NamespacedName) string {
	names := make([]string, 0, len(accounts))
	for _, a := range accounts {
		names = append(names, strconv.Quote("system:serviceaccount:"+a.Namespace+":"+a.Name))
	}

	return strings.Join(names, ", ")
}
