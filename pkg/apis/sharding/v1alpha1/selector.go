package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// EffectiveNamespaceSelector returns the selector of the namespaces that the ring covers: a copy of the spec's selector, or the default, which selects every
// namespace except Kubernetes' own and [contract.SystemNamespace]. It is never nil. It applies only to namespaced objects.
func (s ClusterRingSpec) EffectiveNamespaceSelector() *metav1.LabelSelector {
	if s.NamespaceSelector != nil {
		return s.NamespaceSelector.DeepCopy()
	}

	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key:      corev1.LabelMetadataName,
		Operator: metav1.LabelSelectorOpNotIn,
		Values:   []string{corev1.NamespaceNodeLease, metav1.NamespacePublic, metav1.NamespaceSystem, contract.SystemNamespace},
	}}}
}
