package kit

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// parseNamespaceSelector returns the selector in --default-namespace-selector; nil if there is none.
func parseNamespaceSelector(text string) (*metav1.LabelSelector, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // none is a valid value
	}

	selector, err := metav1.ParseToLabelSelector(text)
	if err == nil {
		_, err = metav1.LabelSelectorAsSelector(selector)
	}

	if err != nil {
		return nil, fmt.Errorf("--default-namespace-selector %q is no label selector, such as sharding=enabled or kubernetes.io/metadata.name notin (a,b): %w", text, err)
	}

	return selector, nil
}

// selectNamespaces returns the transformation of what a cache holds of rings: those without a selector get the given one, which may be nil.
// All that a service knows of a ring comes from the cache, and no service writes the spec.
func selectNamespaces(selector *metav1.LabelSelector) cache.TransformFunc {
	return func(obj any) (any, error) {
		ring, ok := obj.(*v1alpha1.ClusterRing)
		if !ok {
			return obj, nil
		}

		ring.ManagedFields = nil
		if ring.Spec.NamespaceSelector == nil {
			ring.Spec.NamespaceSelector = selector.DeepCopy()
		}

		return ring, nil
	}
}
