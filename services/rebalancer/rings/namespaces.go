package rings

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// namespaces answers from the labels of namespaces in the cache. If the cache does not contain a namespace yet, it
// reads the namespace live. It stores nothing.
type namespaces struct {
	cached client.Reader
	live   client.Reader
}

// Selects reports whether the namespace exists and the selector selects it.
func (n namespaces) Selects(ctx context.Context, name string, selector labels.Selector) (bool, error) {
	ns := &corev1.Namespace{}

	// No copy: this is called for every object of a pass.
	err := n.cached.Get(ctx, client.ObjectKey{Name: name}, ns, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		err = n.live.Get(ctx, client.ObjectKey{Name: name}, ns)
	}

	if apierrors.IsNotFound(err) {
		return false, nil
	}

	if err != nil {
		return false, fmt.Errorf("read namespace %s: %w", name, err)
	}

	return selector.Matches(labels.Set(ns.Labels)), nil
}

// Covered reports for each namespace in the cache whether the selector selects it.
func (n namespaces) Covered(ctx context.Context, selector labels.Selector) (map[string]bool, error) {
	list := &corev1.NamespaceList{}
	if err := n.cached.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}

	covered := make(map[string]bool, len(list.Items))
	for i := range list.Items {
		covered[list.Items[i].Name] = selector.Matches(labels.Set(list.Items[i].Labels))
	}

	return covered, nil
}

// unwatched says which namespaces a target covers that no available shard watches, and which shards watch what; empty
// if there is none.
func unwatched(t *target) string {
	namespaced := func(r resources.Resource) bool { return r.Namespaced && !t.Leaving[r.GroupResource()] }
	if !t.View.Restricted() || !slices.ContainsFunc(t.Set.Main(), namespaced) {
		return ""
	}

	names := slices.DeleteFunc(slices.Sorted(maps.Keys(t.covered)), func(name string) bool {
		return !t.covered[name] || t.View.Watched(name)
	})
	if len(names) == 0 {
		return ""
	}

	return fmt.Sprintf("nobody works on objects in the namespaces %s, which the ring covers and no shard watches: %s; "+
		"start the shards with these namespaces, or leave them out in spec.namespaceSelector",
		membership.Few(names), strings.Join(t.View.Restrictions(), "; "))
}
