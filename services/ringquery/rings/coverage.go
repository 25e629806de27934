package rings

import (
	"fmt"

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

// Covers reports whether the ring covers the namespace (empty: cluster-scoped objects) with these labels. If they are nil, it reports what
// follows from the name of the namespace: the API server adds the name to every namespace as a label.
func (r Ring) Covers(namespace string, has map[string]string) Coverage {
	if namespace == "" {
		return Covered
	}

	selector, err := r.namespaces()
	if err != nil {
		return Unknown
	}

	unread := has == nil
	if unread {
		has = map[string]string{corev1.LabelMetadataName: namespace}
	}

	requirements, selectable := selector.Requirements()
	if !selectable {
		return NotCovered
	}

	coverage := Covered

	for _, requirement := range requirements {
		switch {
		case unread && requirement.Key() != corev1.LabelMetadataName:
			coverage = Unknown
		case !requirement.Matches(labels.Set(has)):
			return NotCovered
		}
	}

	return coverage
}

// CheckSelector returns an error that wraps [ErrNotSharded] if the selector of the ring is not valid.
func (r Ring) CheckSelector() error {
	if _, err := r.namespaces(); err != nil {
		return fmt.Errorf("%w: the namespaceSelector of ring %s cannot be used: %w", ErrNotSharded, r.Name, err)
	}

	return nil
}

// Selector returns the selector of the namespaces that the ring covers, in the form of kubectl's --selector. Empty: all namespaces. If the
// selector is not valid, it returns the error.
func (r Ring) Selector() string {
	selector, err := r.namespaces()
	if err != nil {
		return "invalid: " + err.Error()
	}

	return selector.String()
}

func (r Ring) namespaces() (labels.Selector, error) {
	return metav1.LabelSelectorAsSelector(r.Spec.EffectiveNamespaceSelector()) //nolint:wrapcheck // it says what is wrong
}
