package clusterring

import (
	"context"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// maxMutating limits how many webhooks and policies a message names.
const maxMutating = 5

// Mutating names the webhooks and policies that may change objects of the resources in updates. It returns "" if there
// are none, and if the reader, which may list few of them, fails. Selectors and conditions are not evaluated.
func Mutating(ctx context.Context, live client.Reader, set *resources.Set) string {
	var (
		webhooks admissionregistrationv1.MutatingWebhookConfigurationList
		policies admissionregistrationv1.MutatingAdmissionPolicyList
		names    []string
	)

	// Not every API server has policies, and an embedded sharder may read neither.
	for _, list := range []client.ObjectList{&webhooks, &policies} {
		_ = live.List(ctx, list)
	}

	for i := range webhooks.Items {
		if _, ours := webhooks.Items[i].Labels[contract.LabelClusterRing]; ours {
			continue
		}

		for _, w := range webhooks.Items[i].Webhooks {
			if slices.ContainsFunc(w.Rules, updates(set)) {
				names = append(names, "webhook "+w.Name+" of "+webhooks.Items[i].Name)
			}
		}
	}

	for i := range policies.Items {
		rules := ptr.Deref(policies.Items[i].Spec.MatchConstraints, admissionregistrationv1.MatchResources{}).ResourceRules
		if slices.ContainsFunc(rules, func(rule admissionregistrationv1.NamedRuleWithOperations) bool {
			return updates(set)(rule.RuleWithOperations)
		}) {
			names = append(names, "policy "+policies.Items[i].Name)
		}
	}

	if len(names) == 0 {
		return ""
	}

	if more := len(names) > maxMutating; more {
		names = append(names[:maxMutating], "...")
	}

	return "; updates of resources of the ring may be changed by: " + strings.Join(names, ", ")
}

// updates returns a function that reports whether a rule matches updates of a resource of the ring.
func updates(set *resources.Set) func(admissionregistrationv1.RuleWithOperations) bool {
	all := slices.Concat(set.Main(), set.Controlled())
	has := func(values []string, wanted ...string) bool {
		return slices.ContainsFunc(wanted, func(value string) bool { return slices.Contains(values, value) })
	}

	return func(rule admissionregistrationv1.RuleWithOperations) bool {
		return (slices.Contains(rule.Operations, admissionregistrationv1.Update) ||
			slices.Contains(rule.Operations, admissionregistrationv1.OperationAll)) &&
			slices.ContainsFunc(all, func(r resources.Resource) bool {
				return has(rule.APIGroups, r.GVR.Group, "*") && has(rule.Resources, r.GVR.Resource, "*", "*/*")
			})
	}
}
