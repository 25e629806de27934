package api

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// fewNamespaces is the maximum number of namespaces that are read one by one. For more, all are listed.
const fewNamespaces = 10

// namespaces caches, for one question, which namespaces a ring covers. It reads a namespace only if its name is not sufficient to
// decide. It is not safe for concurrent use.
type namespaces struct {
	ring    rings.Ring
	objects *rings.Objects

	known  map[string]bool
	listed bool // all namespaces that are not in known are not covered
}

// namespacesOf returns the namespaces of a ring. It fails with [rings.ErrNotAdded] if the ring's selector cannot be used.
func namespacesOf(ring rings.Ring, objects *rings.Objects) (*namespaces, error) {
	return &namespaces{ring: ring, objects: objects, known: map[string]bool{}}, ring.CheckSelector()
}

// learn finds out which namespaces of the objects are covered.
func (n *namespaces) learn(ctx context.Context, objects []metav1.PartialObjectMetadata) error {
	unknown := sets.New[string]()

	for i := range objects {
		name := objects[i].Namespace
		if _, known := n.known[name]; known || n.listed {
			continue
		}

		if coverage := n.ring.Covers(name, nil); coverage == rings.Unknown {
			unknown.Insert(name)
		} else {
			n.known[name] = coverage == rings.Covered
		}
	}

	if len(unknown) > fewNamespaces {
		return n.list(ctx)
	}

	for name := range unknown {
		has, err := n.objects.NamespaceLabels(ctx, name)
		if err != nil && !errors.Is(err, rings.ErrNotFound) {
			return readable(err, "namespaces")
		}

		n.known[name] = err == nil && n.ring.Covers(name, has) == rings.Covered
	}

	return nil
}

// list finds all covered namespaces.
func (n *namespaces) list(ctx context.Context) error {
	err := n.objects.Pages(ctx, rings.Namespaces, n.ring.Selector(), func(items []metav1.PartialObjectMetadata) error {
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
func (n *namespaces) covers(namespace string) bool { return namespace == "" || n.known[namespace] }

// readable adds advice to an error of reading objects.
func readable(err error, resource string) error {
	if !errors.Is(err, rings.ErrForbidden) {
		return err
	}

	return fmt.Errorf("%w: this server may not list %s: grant it get and list, by a ClusterRole with the label %s=true: %w",
		rings.ErrNotReadable, resource, contract.LabelAggregateToRingQuery, err)
}
