package query

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// Coverage says whether a ring shards objects in a namespace. Its zero value is Unknown.
type Coverage int

const (
	// Unknown says that it depends on labels of the namespace, which have not been read.
	Unknown Coverage = iota
	// Covered says that it does, whatever labels the namespace has.
	Covered
	// NotCovered says that it does not, whatever labels the namespace has.
	NotCovered
)

// Covers says whether the ring covers the namespace, as far as the namespace's name tells: the API server sees to it that
// every namespace carries its name as a label.
func Covers(ring *v1alpha1.ClusterRing, namespace string) Coverage {
	selector, err := metav1.LabelSelectorAsSelector(ring.Spec.EffectiveNamespaceSelector())
	if err != nil {
		return Unknown
	}

	requirements, selectable := selector.Requirements()
	if !selectable {
		return NotCovered
	}

	coverage := Covered
	for _, r := range requirements {
		switch {
		case r.Key() != corev1.LabelMetadataName:
			coverage = Unknown
		case !r.Matches(labels.Set{corev1.LabelMetadataName: namespace}):
			return NotCovered
		}
	}

	return coverage
}

// Selector returns the selector of the namespaces that the ring covers, in the form of kubectl's --selector; empty: all. One
// that the API server would not accept in a webhook configuration is returned as the error that says so.
func Selector(ring *v1alpha1.ClusterRing) string {
	selector, err := metav1.LabelSelectorAsSelector(ring.Spec.EffectiveNamespaceSelector())
	if err != nil {
		return "invalid: " + err.Error()
	}

	return selector.String()
}
