package clusterring

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Namespaces answers which namespaces a ring covers, from their labels in the cache. If the cache does not contain a
// namespace yet, it reads the namespace live. It stores nothing.
type Namespaces struct {
	// Cached reads namespaces from a cache, and Live reads them from the API server. Both are required.
	Cached, Live client.Reader
}

// Selects reports whether the namespace exists and the selector selects it. It returns errors of the readers.
func (n Namespaces) Selects(ctx context.Context, name string, selector labels.Selector) (bool, error) {
	ns := &corev1.Namespace{}

	// No copy: this is called for every object of a pass.
	err := n.Cached.Get(ctx, client.ObjectKey{Name: name}, ns, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		err = n.Live.Get(ctx, client.ObjectKey{Name: name}, ns)
	}

	if apierrors.IsNotFound(err) {
		return false, nil
	}

	if err != nil {
		return false, fmt.Errorf("read namespace %s: %w", name, err)
	}

	return selector.Matches(labels.Set(ns.Labels)), nil
}

// Covered reports for each namespace in the cache whether the selector selects it. It returns the reader's error.
func (n Namespaces) Covered(ctx context.Context, selector labels.Selector) (map[string]bool, error) {
	list := &corev1.NamespaceList{}
	if err := n.Cached.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}

	covered := make(map[string]bool, len(list.Items))
	for i := range list.Items {
		covered[list.Items[i].Name] = selector.Matches(labels.Set(list.Items[i].Labels))
	}

	return covered, nil
}
