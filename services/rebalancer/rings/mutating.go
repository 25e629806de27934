package rings

import (
	"context"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// maxMutating limits how many webhooks and policies a message names.
const maxMutating = 5

// mutating names the webhooks and policies that may change objects of the ring in updates, if the policy about the rebalancer has refused a write
// because of such a change; otherwise, and if they cannot be read, it returns "". Selectors and conditions are not evaluated.
func (r *Reconciler) mutating(ctx context.Context, set *resources.Set, failure string) string {
	if !feed.MentionsPolicy(failure) {
		return ""
	}

	var (
		names    []string
		webhooks admissionregistrationv1.MutatingWebhookConfigurationList
		policies admissionregistrationv1.MutatingAdmissionPolicyList
	)

	// Not every API server has policies, and an embedded sharder may read neither.
	for _, list := range []client.ObjectList{&webhooks, &policies} {
		_ = r.live.List(ctx, list)
	}

	for i := range webhooks.Items {
		if _, ours := webhooks.Items[i].Labels[contract.LabelClusterRing]; ours {
			continue
		}

		for _, w := range webhooks.Items[i].Webhooks {
			if slices.ContainsFunc(w.Rules, func(rule admissionregistrationv1.RuleWithOperations) bool { return updates(rule, set) }) {
				names = append(names, "webhook "+w.Name+" of "+webhooks.Items[i].Name)
			}
		}
	}

	for i := range policies.Items {
		match := policies.Items[i].Spec.MatchConstraints
		if match != nil && slices.ContainsFunc(match.ResourceRules, func(rule admissionregistrationv1.NamedRuleWithOperations) bool {
			return updates(rule.RuleWithOperations, set)
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

// updates reports whether a rule matches updates of a resource of the ring.
func updates(rule admissionregistrationv1.RuleWithOperations, set *resources.Set) bool {
	matches := func(gr schema.GroupResource) bool {
		return (slices.Contains(rule.APIGroups, gr.Group) || slices.Contains(rule.APIGroups, "*")) &&
			slices.ContainsFunc(rule.Resources, func(name string) bool { return name == gr.Resource || name == "*" || name == "*/*" })
	}

	return slices.ContainsFunc(rule.Operations, func(o admissionregistrationv1.OperationType) bool {
		return o == admissionregistrationv1.Update || o == admissionregistrationv1.OperationAll
	}) && slices.ContainsFunc(slices.Concat(set.Main(), set.Controlled()), func(r resources.Resource) bool { return matches(r.GroupResource()) })
}
