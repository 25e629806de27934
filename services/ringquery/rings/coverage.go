package rings

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Coverage reports whether a ring shards objects in a namespace. Its zero value is Unknown.
type Coverage int

const (
	// Unknown means that it depends on labels of the namespace that have not been read.
	Unknown Coverage = iota
	// Covered means that the ring shards them.
	Covered
	// NotCovered means that the ring does not shard them.
	NotCovered
)

// Covers reports whether the ring covers the namespace, as far as this follows from the name of the namespace. The API server adds the
// name to every namespace as a label.
func (r Ring) Covers(namespace string) Coverage {
	selector, err := metav1.LabelSelectorAsSelector(r.Spec.EffectiveNamespaceSelector())
	if err != nil {
		return Unknown
	}

	requirements, selectable := selector.Requirements()
	if !selectable {
		return NotCovered
	}

	coverage := Covered

	for _, requirement := range requirements {
		switch {
		case requirement.Key() != corev1.LabelMetadataName:
			coverage = Unknown
		case !requirement.Matches(labels.Set{corev1.LabelMetadataName: namespace}):
			return NotCovered
		}
	}

	return coverage
}

// CoversLabels reports whether the ring covers a namespace with these labels.
func (r Ring) CoversLabels(has map[string]string) Coverage {
	selector, err := metav1.LabelSelectorAsSelector(r.Spec.EffectiveNamespaceSelector())

	switch {
	case err != nil:
		return Unknown
	case selector.Matches(labels.Set(has)):
		return Covered
	default:
		return NotCovered
	}
}

// Selector returns the selector of the namespaces that the ring covers, in the form of kubectl's --selector. Empty: all namespaces. If the
// selector is not valid, it returns the error.
func (r Ring) Selector() string {
	selector, err := metav1.LabelSelectorAsSelector(r.Spec.EffectiveNamespaceSelector())
	if err != nil {
		return "invalid: " + err.Error()
	}

	return selector.String()
}
