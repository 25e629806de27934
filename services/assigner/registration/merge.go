package registration

import (
	"maps"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// merge returns the configuration as it should be. Labels and annotations that others have added stay; so does a bundle that is not ours to fill in.
//
// If the assigner has written what it wants before, what others have added to selectors and match conditions stays, too: they can only exclude objects,
// which get their shards from the rebalancer. Managed Kubernetes excludes its own namespaces so. Otherwise, what was added is dropped, because it may come
// from what the ring was before. Others then add theirs again.
func merge(have, want *admissionregistrationv1.MutatingWebhookConfiguration, again bool) *admissionregistrationv1.MutatingWebhookConfiguration {
	next := have.DeepCopy()
	next.OwnerReferences = want.OwnerReferences
	next.Webhooks = want.DeepCopy().Webhooks
	next.Labels = added(have.Labels, want.Labels)

	_, inject := want.Annotations[annotationInjectCA]
	if inject {
		next.Annotations = added(have.Annotations, want.Annotations)
	} else {
		delete(next.Annotations, annotationInjectCA)
	}

	for i := range next.Webhooks {
		w := &next.Webhooks[i]

		j := slices.IndexFunc(have.Webhooks, func(h admissionregistrationv1.MutatingWebhook) bool { return h.Name == w.Name })
		if j < 0 {
			continue
		}

		h := have.Webhooks[j].DeepCopy()
		if inject {
			w.ClientConfig.CABundle = h.ClientConfig.CABundle
		}

		if again {
			w.NamespaceSelector = narrowed(h.NamespaceSelector, w.NamespaceSelector)
			w.ObjectSelector = narrowed(h.ObjectSelector, w.ObjectSelector)
			w.MatchConditions = all(slices.DeleteFunc(h.MatchConditions, func(c admissionregistrationv1.MatchCondition) bool { return changed(c, w) }), w.MatchConditions)
		}
	}

	return next
}

// changed reports whether a match condition has the name of one of the webhook's, and not its expression. Names are unique.
func changed(c admissionregistrationv1.MatchCondition, w *admissionregistrationv1.MutatingWebhook) bool {
	return slices.ContainsFunc(w.MatchConditions, func(ours admissionregistrationv1.MatchCondition) bool { return ours.Name == c.Name && ours != c })
}

// added returns the entries of both maps; those of want win.
func added(have, want map[string]string) map[string]string {
	if len(have) == 0 {
		return maps.Clone(want)
	}

	out := maps.Clone(have)
	maps.Copy(out, want)

	return out
}

// narrowed returns a selector with the requirements of both.
func narrowed(have, want *metav1.LabelSelector) *metav1.LabelSelector {
	if have == nil || want == nil {
		return want
	}

	return &metav1.LabelSelector{
		MatchLabels:      added(have.MatchLabels, want.MatchLabels),
		MatchExpressions: all(have.MatchExpressions, want.MatchExpressions),
	}
}

// all returns the elements of both lists: have, if it contains all that are wanted.
func all[T any](have, want []T) []T {
	return slices.Concat(have, slices.DeleteFunc(slices.Clone(want), func(w T) bool {
		return slices.ContainsFunc(have, func(h T) bool { return equality.Semantic.DeepEqual(h, w) })
	}))
}
