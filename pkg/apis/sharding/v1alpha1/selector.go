package v1alpha1

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

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

// maxRequirements limits the labels, and the expressions, of an object selector, as the CustomResourceDefinition does.
const maxRequirements = 16

// ObjectRequirements returns what the labels of a main object must meet so that the ring shards it: all of them, in an order that depends only on what
// they require. It returns none if the ring shards all objects. It returns an error if spec.objectSelector is not valid, or names a label of a ring.
func (s ClusterRingSpec) ObjectRequirements() (labels.Requirements, error) {
	if s.ObjectSelector == nil {
		return nil, nil
	}

	if len(s.ObjectSelector.MatchLabels) > maxRequirements || len(s.ObjectSelector.MatchExpressions) > maxRequirements {
		return nil, fmt.Errorf("spec.objectSelector: at most %d labels and %d expressions are allowed", maxRequirements, maxRequirements)
	}

	selector, err := metav1.LabelSelectorAsSelector(s.ObjectSelector)
	if err != nil {
		return nil, fmt.Errorf("spec.objectSelector: %w", err)
	}

	requirements, _ := selector.Requirements()

	for _, r := range requirements {
		domain, _, _ := strings.Cut(r.Key(), "/")
		if domain == GroupVersion.Group || strings.HasSuffix(domain, "."+GroupVersion.Group) ||
			s.ShardLabel != "" && (r.Key() == s.ShardLabel || r.Key() == s.ShardLabel+contract.DrainSuffix) {
			return nil, fmt.Errorf("spec.objectSelector: %s is a label of a ring, which changes when objects move", r.Key())
		}
	}

	slices.SortFunc(requirements, func(a, b labels.Requirement) int { return cmp.Compare(a.String(), b.String()) })

	return requirements, nil
}
