package shard

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	toolscache "k8s.io/client-go/tools/cache"
)

// cached is a cache of one resource.
type cached struct {
	form     form                        // the Go type is nil if the program does not use controller-runtime
	resource schema.GroupVersionResource // empty until the mapper is known
	store    toolscache.Store
	// namespace is the only one of the cache, if that is known. If split is set, the program reads only some namespaces, and they can
	// be distributed to several caches of one form.
	namespace string
	split     bool
	some      string // one of these namespaces; empty if the program reads all
	// stopped reports whether the cache receives no events any more. Nil: that is not known.
	stopped func() bool
	// live reads metadata from the API server. It may return nil: then nothing can be listed, and nothing is waited for.
	live func() metadata.Interface
}

// shows reports whether the cache contains an object of the namespace, as far as it has an index of them.
func (c *cached) shows(namespace string) bool {
	indexer, ok := c.store.(toolscache.Indexer)

	return ok && slices.Contains(indexer.ListIndexFuncValues(toolscache.NamespaceIndex), namespace)
}

// lists returns an object that follows the given one and is not shown by the caches, or "" if there is none.
func (c *cached) lists(ctx context.Context, obj metav1.Object, selector labels.Selector, shown func(key string) bool) (missing string, err error) {
	live := c.live()
	if live == nil {
		return "", nil
	}

	o := metav1.ListOptions{LabelSelector: selector.String(), Limit: listPage}

	for {
		page, err := c.page(ctx, live, obj.GetNamespace(), o)
		if err != nil {
			return "", err
		}

		for i := range page.Items {
			item := &page.Items[i]
			if by := metav1.GetControllerOfNoCopy(item); by == nil || by.UID != obj.GetUID() {
				continue
			}

			key := toolscache.NewObjectName(item.Namespace, item.Name).String()
			if !shown(key) {
				return key, nil
			}
		}

		if o.Continue = page.Continue; o.Continue == "" {
			return "", nil
		}
	}
}

// page lists one page, within the timeout of a request.
func (c *cached) page(ctx context.Context, live metadata.Interface, namespace string, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()

	return live.Resource(c.resource).Namespace(namespace).List(ctx, o) //nolint:wrapcheck // lists adds the resource
}
