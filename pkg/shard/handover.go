package shard

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
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
	// unwatched is after which time without a look at an object it no longer counts as one that waits.
	unwatched = 2 * time.Minute
)

// handovers ensure that no worker starts on an object before its caches show all objects that follow the object. A controller
// that counts its children in a stale cache creates too many of them.
//
//	H1  A worker works on an object, and on what follows it, only after the process's caches have reached the versions in the
//	    handover annotation (v1alpha1.Handover). The writes behind these versions are events of the same caches, so they arrive
//	    without further requests.
//	H2  The worker does not wait for kinds that the process does not cache.
//	H3  If versions are comparable, an object that waits sends no request of its own. If they are not, the worker lists what
//	    follows the object every two seconds, until the caches show all of it once.
//	H4  The worker does not wait for versions that the API server has not reached itself. They come with objects that are restored
//	    from another cluster, because a restore keeps annotations. While objects wait for more than two seconds, one request for
//	    each resource tells, every two seconds.
//	H5  The worker does not wait for informers that have stopped, nor for those of other namespaces if it is known which these are:
//	    they see the next version only with the next bookmark.
type handovers struct {
	annotation string
	selector   labels.Selector

	// watch is called for each informer; nil: nothing is.
	watch func(toolscache.SharedIndexInformer, schema.GroupKind)

	mu     sync.Mutex
	stores []*cached
	mapper meta.RESTMapper
	// waits are the objects that wait.
	waits   map[objectKey]postponed
	metrics waitMetrics
	// settled are handovers that are not compared again: the caches have shown all followers once, or the API server had not reached
	// the versions. asked is when a list was made.
	settled map[objectKey]string
	asked   map[objectKey]time.Time
	present *present
	swept   time.Time // when waits was last swept
}

// handed is an object with its handover, as a worker finds it.
type handed struct {
	metav1.Object

	key      objectKey
	value    string // the annotation
	versions v1alpha1.Handover
	now      time.Time
}

// postponed is the handover of an object that waits: since when, when this was last logged, and when a worker last looked.
type postponed struct {
	handover            string
	since, told, looked time.Time
}

// newHandovers returns the handovers of the shards of a ring, in the annotation with the given key. The selector selects one of the shards.
func newHandovers(ring, annotation string, selector labels.Selector) *handovers {
	return &handovers{
		annotation: annotation, selector: selector,
		waits: map[objectKey]postponed{}, metrics: waitMetricsOf(ring), settled: map[objectKey]string{}, asked: map[objectKey]time.Time{},
		present: newPresent(selector),
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

	some, split := o.DefaultNamespaces, len(o.DefaultNamespaces) > 0
	for _, kind := range o.ByObject {
		if len(kind.Namespaces) > 0 {
			some, split = kind.Namespaces, true
		}
	}

	readable := metav1.NamespaceAll
	if _, all := some[metav1.NamespaceAll]; split && !all {
		readable = slices.Min(slices.Collect(maps.Keys(some)))
	}

	o.NewInformer = func(lw toolscache.ListerWatcher, obj runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		informer := inner(lw, obj, resync, indexers)

		if gvk, err := apiutil.GVKForObject(obj, sch); err == nil { // otherwise nothing of it follows an owner by its kind
			h.add(&cached{form: form{gvk, reflect.TypeOf(obj)}, split: split, some: readable, store: informer.GetStore(), stopped: informer.IsStopped, live: live})

			if h.watch != nil {
				h.watch(informer, gvk.GroupKind())
			}
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
	o := handed{Object: obj, key: key, value: obj.GetAnnotations()[h.annotation], now: now}

	var err error
	if o.versions, err = v1alpha1.ParseHandover(o.value); err != nil {
		log.FromContext(ctx).Error(err, "Ignoring the handover annotation, because it cannot be read",
			"annotation", h.annotation, "kind", key.Kind, "object", key.NamespacedName)
	}

	lag := h.missing(o)
	if lag.behind != nil && h.waitsSince(o, now.Add(-recheck)) {
		if err := h.present.ask(ctx, lag.behind, cmp.Or(obj.GetNamespace(), lag.behind.namespace, lag.behind.some), now); err != nil {
			lag.missing += fmt.Sprintf(" (the API server cannot be asked for its version: %v)", err)
		}
	}

	switch {
	case lag.missing != "" || len(lag.unclear) == 0:
	case h.askedLately(key, now):
		lag.missing = "an object that a recent list contained"
	default:
		if lag.missing, err = h.lists(ctx, key, obj, lag.unclear); err != nil {
			return "", err
		}
	}

	h.mu.Lock()
	defer h.mu.Unlock()

	h.sweep(now)

	if lag.missing == "" {
		h.begins(o)

		if len(lag.unclear) > 0 || lag.foreign {
			h.settled[key] = o.value
		}

		return "", nil
	}

	h.waitsFor(ctx, o, lag.missing)

	return lag.missing, nil
}

// begins records that the worker may begin. The caller holds the lock.
func (h *handovers) begins(o handed) {
	delete(h.asked, o.key)

	if w, waits := h.waits[o.key]; waits {
		h.metrics.took.Observe(o.now.Sub(w.since).Seconds())
		h.ends(o.key)
	}
}

// waitsFor records that an object waits, and logs it from time to time. The caller holds the lock.
func (h *handovers) waitsFor(ctx context.Context, o handed, missing string) {
	w, waits := h.waits[o.key]

	switch {
	case !waits:
		w = postponed{handover: o.value, since: o.now, told: o.now}
		h.metrics.objects.Inc()
	case w.handover != o.value:
		w = postponed{handover: o.value, since: o.now, told: o.now} // what is known of the former versions says nothing about these
	}

	if o.now.Sub(w.told) >= longWait {
		w.told = o.now
		log.FromContext(ctx).Info("Still waiting until the cache shows what follows the object", "kind", o.key.Kind, "object", o.key.NamespacedName,
			"missing", missing, "waited", o.now.Sub(w.since).Round(time.Second).String())
	}

	w.looked = o.now
	h.waits[o.key] = w
}

// sweep drops objects that have left the shard while they waited, if nothing leads a worker to them any more. The caller holds the lock.
func (h *handovers) sweep(now time.Time) {
	if now.Sub(h.swept) < unwatched {
		return
	}

	h.swept = now

	for key, w := range h.waits {
		if now.Sub(w.looked) >= unwatched {
			h.ends(key)
		}
	}
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
		h.mu.Lock()
		family := h.family(c)
		h.mu.Unlock()

		shown := func(key string) bool {
			return slices.ContainsFunc(family, func(c *cached) bool {
				_, there, err := c.store.GetByKey(key)

				return err == nil && there
			})
		}

		missing, err := c.lists(ctx, obj, h.selector, shown)
		if err != nil {
			return "", fmt.Errorf("list the %s that follow %s %s: %w", c.resource.GroupResource(), key.Kind, key.NamespacedName, err)
		}

		if missing != "" {
			return fmt.Sprintf("%s %s", c.resource.GroupResource(), missing), nil
		}
	}

	return "", nil
}

// forget drops an object that belongs to another shard.
func (h *handovers) forget(key objectKey) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.ends(key)
	delete(h.asked, key)
	delete(h.settled, key)
}

// lag is what the caches have yet to reach.
type lag struct {
	missing string    // what it is, or "" if nothing
	behind  *cached   // the cache that has not reached it
	unclear []*cached // caches whose versions cannot be compared
	foreign bool      // whether the API server has not reached a version either
}

// missing compares the handover of an object with the caches.
func (h *handovers) missing(o handed) lag {
	h.mu.Lock()
	defer h.mu.Unlock()

	if len(o.versions) == 0 || h.settled[o.key] == o.value {
		return lag{}
	}

	h.stores = slices.DeleteFunc(h.stores, func(c *cached) bool { return c.stopped != nil && c.stopped() })

	var l lag

	for _, c := range h.stores {
		resource, err := h.resourceOf(c)
		if err != nil { // it may be one of those that are named
			return lag{missing: fmt.Sprintf("the resource of %s, which is not known: %v", c.form.gvk.Kind, err)}
		}

		version, named := o.versions[resource]
		if !named {
			continue
		}

		is := c.store.LastStoreSyncResourceVersion()

		switch state := notOlder(is, version); {
		case state == fresh || h.elsewhere(c, o.GetNamespace()):
		case state == unsaid:
			if !slices.ContainsFunc(h.family(c), func(other *cached) bool { return slices.Contains(l.unclear, other) }) {
				l.unclear = append(l.unclear, c) // one list serves the family
			}
		case h.ahead(o, resource):
			l.foreign = true
		default:
			return lag{missing: fmt.Sprintf("%s at version %s, which is at %s", resource, version, is), behind: c}
		}
	}

	return l
}

// elsewhere reports whether the cache is certainly one of other namespaces: it is known to be, or another one shows this namespace. The
// caller holds the lock.
func (h *handovers) elsewhere(c *cached, namespace string) bool {
	if namespace == "" {
		return false // what follows a cluster-scoped object can be anywhere
	}

	if c.namespace != "" {
		return c.namespace != namespace
	}

	return c.split && !c.shows(namespace) && slices.ContainsFunc(h.family(c), func(other *cached) bool { return other.shows(namespace) })
}

// family returns the caches between which the objects of a cache are distributed by namespace, with itself. The caller holds the lock.
func (h *handovers) family(c *cached) []*cached {
	var all []*cached

	for _, other := range h.stores {
		if other == c || other.form == c.form && (c.split || other.namespace != c.namespace) {
			all = append(all, other)
		}
	}

	return all
}

// ahead reports whether the API server had not reached the version of the resource when the object waited for it already. Then no
// write on this API server has made the version. The caller holds the lock.
func (h *handovers) ahead(o handed, resource schema.GroupResource) bool {
	w, waits := h.waits[o.key]

	return waits && w.handover == o.value && h.present.ahead(resource, o.versions[resource], w.since)
}

// waitsSince reports whether the object has waited for this handover since the time or longer.
func (h *handovers) waitsSince(o handed, since time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()

	w, waits := h.waits[o.key]

	return waits && w.handover == o.value && !w.since.After(since)
}

// resourceOf returns the resource of a cache. It is empty without a mapper, and if the API server does not serve the kind. The error is that
// of the mapper, which may know the resource later. The caller holds the lock.
func (h *handovers) resourceOf(c *cached) (schema.GroupResource, error) {
	if c.resource.Resource == "" && h.mapper != nil {
		mapping, err := h.mapper.RESTMapping(c.form.gvk.GroupKind(), c.form.gvk.Version)

		switch {
		case err == nil:
			c.resource = mapping.Resource
		case !meta.IsNoMatchError(err):
			return schema.GroupResource{}, fmt.Errorf("look up the resource: %w", err)
		}
	}

	return c.resource.GroupResource(), nil
}
