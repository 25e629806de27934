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
	// soon is when a worker looks again whether its caches have reached what a handover says. That asks nobody.
	soon = 50 * time.Millisecond
	// longWait is after what time it is told that they have not.
	longWait = 10 * time.Second
)

// handovers make sure that no worker begins with an object before it can see all that follows the object. A controller that counts its
// children in a cache that lags makes more of them.
//
//	H1  An object is worked on, and so is what follows it, only when the process's caches have reached what the handover annotation says
//	    (v1alpha1.Handover). The writes that it speaks of are events of these very caches, so that they get there by themselves.
//	H2  What the process does not cache is not waited for.
//	H3  To wait costs no request, where versions can be compared. Where they cannot, what follows the object is listed every two seconds, until
//	    the caches show all of it once.
type handovers struct {
	annotation string
	selector   labels.Selector

	mu     sync.Mutex
	stores []*cached
	mapper meta.RESTMapper
	// waits are the objects that wait.
	waits   map[objectKey]postponed
	metrics waitMetrics
	// listed are handovers that cannot be compared, of objects of which the caches have shown all that a list has; asked is when one was made.
	listed map[objectKey]string
	asked  map[objectKey]time.Time
}

// postponed is since when an object waits, and when that was last told.
type postponed struct{ since, told time.Time }

// cached is a cache of one resource.
type cached struct {
	kind     schema.GroupVersionKind
	resource schema.GroupVersionResource // empty until the mapper has told
	store    toolscache.Store
	// live reads metadata from the API server. What it returns may be nil: then nothing can be listed, and is not waited for.
	live func() metadata.Interface
}

// newHandovers returns those of the shards of a ring, of which the selector selects one.
func newHandovers(ring string, selector labels.Selector) *handovers {
	return &handovers{
		annotation: v1alpha1.HandoverAnnotation(ring), selector: selector,
		waits: map[objectKey]postponed{}, metrics: waitMetricsOf(ring), listed: map[objectKey]string{}, asked: map[objectKey]time.Time{},
	}
}

// follow has the options take note of every informer that the manager's cache makes.
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

		if gvk, err := apiutil.GVKForObject(obj, sch); err == nil { // or nothing of it follows anybody by its kind
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

// mapped says how to find out the resources of kinds.
func (h *handovers) mapped(mapper meta.RESTMapper) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.mapper = mapper
}

// awaits returns what a cache has yet to reach before the object may be worked on; empty if nothing. The error is that of a list.
func (h *handovers) awaits(ctx context.Context, key objectKey, obj metav1.Object, now time.Time) (string, error) {
	value := obj.GetAnnotations()[h.annotation]
	handover, err := v1alpha1.ParseHandover(value)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot read what has to be seen before the object is worked on; works on it",
			"annotation", h.annotation, "kind", key.Kind, "object", key.NamespacedName)
	}

	missing, unsaid := h.missing(key, value, handover)
	switch {
	case missing != "" || len(unsaid) == 0:
	case h.askedLately(key, now):
		missing = "something that a list has shown a moment ago"
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
		log.FromContext(ctx).Info("Still waits until its cache shows what follows the object", "kind", key.Kind, "object", key.NamespacedName,
			"missing", missing, "waited", now.Sub(w.since).Round(time.Second).String())
	}
	h.waits[key] = w

	return missing, nil
}

// ends notes that an object waits no more. The lock is held.
func (h *handovers) ends(key objectKey) {
	if _, waits := h.waits[key]; waits {
		delete(h.waits, key)
		h.metrics.objects.Dec()
	}
}

// askedLately reports whether what follows the object was listed a moment ago; if not, it is to be now.
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

// lists returns what follows the object and is not in the caches of which the versions cannot be compared; empty if nothing.
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

// lists returns an object that follows another one and is not in the cache; empty if there is none.
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
				return key, nil //nolint:nilerr // it is not there
			}
		}

		if o.Continue = page.Continue; o.Continue == "" {
			return "", nil
		}
	}
}

// page lists one page, within the time for a request.
func (c *cached) page(ctx context.Context, live metadata.Interface, namespace string, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()

	return live.Resource(c.resource).Namespace(namespace).List(ctx, o) //nolint:wrapcheck // lists says what was listed
}

// forget forgets an object that is another shard's.
func (h *handovers) forget(key objectKey) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.ends(key)
	delete(h.asked, key)
	delete(h.listed, key)
}

// missing says which cache has not reached the handover, or of which that cannot be said.
func (h *handovers) missing(key objectKey, value string, handover v1alpha1.Handover) (missing string, unclear []*cached) {
	h.mu.Lock()
	defer h.mu.Unlock()

	for _, c := range h.stores {
		version, named := handover[h.resourceOf(c)]
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

// resourceOf returns what a cache is of; empty if that is not known yet. The lock is held.
func (h *handovers) resourceOf(c *cached) schema.GroupResource {
	if c.resource.Resource == "" && h.mapper != nil {
		if mapping, err := h.mapper.RESTMapping(c.kind.GroupKind(), c.kind.Version); err == nil {
			c.resource = mapping.Resource
		}
	}

	return c.resource.GroupResource()
}
