package query

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/ringquery/metadata"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

const (
	// fewNamespaces is the maximum number of namespaces that are read one by one. For more, all are listed.
	fewNamespaces = 10
	// listSize is the page size of lists that are not part of an answer.
	listSize = 500
)

// namespaces caches, for one question, which namespaces a ring covers. It reads a namespace only if its name is not sufficient to
// decide. It is not safe for concurrent use.
type namespaces struct {
	ring     rings.Ring
	objects  *metadata.Reader
	selector labels.Selector

	known  map[string]bool
	listed bool // all namespaces that are not in known are not covered
}

// namespacesOf returns the namespaces of a ring. It fails with [rings.ErrNotSharded] if the ring's selector cannot be used.
func namespacesOf(ring rings.Ring, objects *metadata.Reader) (*namespaces, error) {
	selector, err := metav1.LabelSelectorAsSelector(ring.Spec.EffectiveNamespaceSelector())
	if err != nil {
		return nil, fmt.Errorf("%w: the namespaceSelector of ring %s cannot be used: %w", rings.ErrNotSharded, ring.Name, err)
	}

	return &namespaces{ring: ring, objects: objects, selector: selector, known: map[string]bool{"": true}}, nil
}

// learn finds out which namespaces of the objects are covered.
func (n *namespaces) learn(ctx context.Context, objects []metav1.PartialObjectMetadata) error {
	unknown := sets.New[string]()

	for i := range objects {
		name := objects[i].Namespace
		if _, known := n.known[name]; known || n.listed {
			continue
		}

		switch n.ring.Covers(name) {
		case rings.Covered:
			n.known[name] = true
		case rings.NotCovered:
			n.known[name] = false
		default:
			unknown.Insert(name)
		}
	}

	if len(unknown) > fewNamespaces {
		return n.list(ctx)
	}

	for name := range unknown {
		has, err := n.objects.NamespaceLabels(ctx, name)
		if err != nil && !errors.Is(err, metadata.ErrNotFound) {
			return readable(err, "namespaces")
		}

		n.known[name] = err == nil && n.selector.Matches(labels.Set(has))
	}

	return nil
}

// list finds all covered namespaces.
func (n *namespaces) list(ctx context.Context) error {
	q := metadata.Query{
		GVR:         corev1.SchemeGroupVersion.WithResource("namespaces"),
		ListOptions: metav1.ListOptions{LabelSelector: n.selector.String(), Limit: listSize},
	}

	err := pages(ctx, n.objects, q, func(items []metav1.PartialObjectMetadata) error {
		for i := range items {
			n.known[items[i].Name] = true
		}

		return nil
	})
	if err != nil {
		return readable(err, "namespaces")
	}

	n.listed = true

	return nil
}

// covers reports whether the ring shards objects in the namespace. Empty: cluster-scoped objects. Call learn first.
func (n *namespaces) covers(namespace string) bool { return n.known[namespace] }
