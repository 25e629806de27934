package shard

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

const (
	// soon is when a worker checks again whether its caches have reached a handover. The check sends no request.
	soon = 50 * time.Millisecond
	// longWait is how long a worker waits for its caches before it logs.
	longWait = 10 * time.Second
)

// handovers ensure that no worker starts on an object before its caches show all objects that follow the object. A controller
// that counts its children in a stale cache creates too many of them.
//
//	H1  A worker works on an object, and on what follows it, only after the process's caches have reached the versions in the
//	    handover annotation (v1alpha1.Handover). The writes behind these versions are events of the same caches, so they arrive
//	    without further requests.
//	H2  The worker does not wait for kinds that the process does not cache.
//	H3  If versions are comparable, waiting sends no request. If they are not, the worker lists what follows the object every
//	    two seconds, until the caches show all of it once.
type handovers struct {
	annotation string
	selector   labels.Selector

	mu     sync.Mutex
	stores []*cached
	mapper meta.RESTMapper
	// waits are the objects that wait.
	waits   map[objectKey]postponed
	metrics waitMetrics
	// listed are handovers that cannot be compared, of objects whose followers the caches have all shown; asked is when a list
	// was made.
	listed map[objectKey]string
	asked  map[objectKey]time.Time
}

// postponed is when an object began to wait, and when this was last logged.
type postponed struct{ since, told time.Time }

// cached is a cache of one resource.
type cached struct {
	kind     schema.GroupVersionKind
	resource schema.GroupVersionResource // empty until the mapper is known
	store    toolscache.Store
	// live reads metadata from the API server. It may return nil: then nothing can be listed, and nothing is waited for.
	live func() metadata.Interface
}

// newHandovers returns the handovers of the shards of a ring, in the annotation with the given key. The selector selects one of the shards.
func newHandovers(ring, annotation string, selector labels.Selector) *handovers {
	return &handovers{
		annotation: annotation, selector: selector,
		waits: map[objectKey]postponed{}, metrics: waitMetricsOf(ring), listed: map[objectKey]string{}, asked: map[objectKey]time.Time{},
	}
}

// follow makes the options register every informer that the manager's cache creates.
func (h *handovers) follow(o *cache.Options, sch *runtime.Scheme, live func() metadata.Interface) {
	if sch == nil {
		sch = scheme.Scheme
	}

	inner := o.NewInformer
	if inner == nil {
		inner = toolscache.NewSharedIndexInformer
	}

	o.NewInformer = func(lw toolscache.ListerWatcher, obj runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		informer := inner(lw, obj, resync, indexers)

		if gvk, err := apiutil.GVKForObject(obj, sch); err == nil { // otherwise nothing of it follows an owner by its kind
			h.add(&cached{kind: gvk, store: informer.GetStore(), live: live})
		}

		return informer
	}
}

func (h *handovers) add(c *cached) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.stores = append(h.stores, c)
}

// mapped sets how to determine the resources of kinds.
func (h *handovers) mapped(mapper meta.RESTMapper) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.mapper = mapper
}

// awaits returns what a cache has yet to reach before the object may be worked on, or "" if nothing. The error is that of a list.
func (h *handovers) awaits(ctx context.Context, key objectKey, obj metav1.Object, now time.Time) (string, error) {
	value := obj.GetAnnotations()[h.annotation]

	handover, err := v1alpha1.ParseHandover(value)
	if err != nil {
		log.FromContext(ctx).Error(err, "Ignoring the handover annotation, because it cannot be read",
			"annotation", h.annotation, "kind", key.Kind, "object", key.NamespacedName)
	}

	missing, unsaid := h.missing(key, value, handover)
	switch {
	case missing != "" || len(unsaid) == 0:
	case h.askedLately(key, now):
		missing = "an object that a recent list contained"
	default:
		if missing, err = h.lists(ctx, key, obj, unsaid); err != nil {
			return "", err
		}
	}

	h.mu.Lock()
	defer h.mu.Unlock()

	w, waits := h.waits[key]

	if missing == "" {
		delete(h.asked, key)

		if waits {
			h.metrics.took.Observe(now.Sub(w.since).Seconds())
			h.ends(key)
		}

		if len(unsaid) > 0 {
			h.listed[key] = value
		}

		return "", nil
	}

	if !waits {
		w = postponed{now, now}
		h.metrics.objects.Inc()
	}

	if now.Sub(w.told) >= longWait {
		w.told = now
		log.FromContext(ctx).Info("Still waiting until the cache shows what follows the object", "kind", key.Kind, "object", key.NamespacedName,
			"missing", missing, "waited", now.Sub(w.since).Round(time.Second).String())
	}

	h.waits[key] = w

	return missing, nil
}

// ends records that an object no longer waits. The caller holds the lock.
func (h *handovers) ends(key objectKey) {
	if _, waits := h.waits[key]; waits {
		delete(h.waits, key)
		h.metrics.objects.Dec()
	}
}

// askedLately reports whether what follows the object was listed a moment ago. If not, it records that it is listed now.
func (h *handovers) askedLately(key objectKey, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()

	asked, waits := h.asked[key]
	if waits && now.Sub(asked) < recheck {
		return true
	}

	h.asked[key] = now

	return false
}

// lists returns an object that follows the given one and that is missing from the caches with incomparable versions, or "" if
// there is none.
func (h *handovers) lists(ctx context.Context, key objectKey, obj metav1.Object, of []*cached) (string, error) {
	for _, c := range of {
		missing, err := c.lists(ctx, obj, h.selector)
		if err != nil {
			return "", fmt.Errorf("list the %s that follow %s %s: %w", c.resource.GroupResource(), key.Kind, key.NamespacedName, err)
		}

		if missing != "" {
			return fmt.Sprintf("%s %s", c.resource.GroupResource(), missing), nil
		}
	}

	return "", nil
}

// lists returns an object that follows the given one and is not in the cache, or "" if there is none.
func (c *cached) lists(ctx context.Context, obj metav1.Object, selector labels.Selector) (missing string, err error) {
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
			if _, there, err := c.store.GetByKey(key); err != nil || !there {
				return key, nil //nolint:nilerr // it does not exist
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

// forget drops an object that belongs to another shard.
func (h *handovers) forget(key objectKey) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.ends(key)
	delete(h.asked, key)
	delete(h.listed, key)
}

// missing returns the cache that has not reached the handover, or whose versions cannot be compared.
func (h *handovers) missing(key objectKey, value string, handover v1alpha1.Handover) (missing string, unclear []*cached) {
	h.mu.Lock()
	defer h.mu.Unlock()

	for _, c := range h.stores {
		resource, err := h.resourceOf(c)
		if err != nil && len(handover) > 0 { // it may be one of those that are named
			return fmt.Sprintf("the resource of %s, which is not known: %v", c.kind.Kind, err), nil
		}

		version, named := handover[resource]
		if !named {
			continue
		}

		is := c.store.LastStoreSyncResourceVersion()

		switch notOlder(is, version) {
		case behind:
			return fmt.Sprintf("%s at version %s, which is at %s", c.resource.GroupResource(), version, is), nil
		case unsaid:
			if h.listed[key] != value {
				unclear = append(unclear, c)
			}
		case fresh:
		}
	}

	return "", unclear
}

// resourceOf returns the resource of a cache. It is empty without a mapper, and if the API server does not serve the kind. The error is that
// of the mapper, which may know the resource later. The caller holds the lock.
func (h *handovers) resourceOf(c *cached) (schema.GroupResource, error) {
	if c.resource.Resource == "" && h.mapper != nil {
		mapping, err := h.mapper.RESTMapping(c.kind.GroupKind(), c.kind.Version)

		switch {
		case err == nil:
			c.resource = mapping.Resource
		case !meta.IsNoMatchError(err):
			return schema.GroupResource{}, fmt.Errorf("look up the resource: %w", err)
		}
	}

	return c.resource.GroupResource(), nil
}
