package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

const (
	// soon is when a worker first checks again whether its caches have reached a handover; seldom is when it does after a while, and between
	// is the part of the time since when it waits. A check sends no request.
	soon, seldom, between = 50 * time.Millisecond, 5 * time.Second, 4
	// longWait is how long a worker waits for its caches before it logs.
	longWait = 10 * time.Second
	// unwatched is after which time without a look at an object it no longer counts as one that waits.
	unwatched = 2 * time.Minute
)

// handovers ensure that no worker starts on an object before its caches show all objects that follow the object. A controller
// that counts its children in a stale cache creates too many of them.
//
//	H1  A worker works on an object, and on what follows it, only after the process's caches have reached the versions in the
//	    handover annotation (contract.Handover). The writes behind these versions are events of the same caches, so they arrive
//	    without further requests. A cache does not go back, so an object does not wait twice for the same versions.
//	H2  The worker does not wait for kinds that the process does not cache. A kind that is not declared could be cached unseen: a handover that
//	    names it is an error.
//	H3  If versions are comparable, an object that waits sends no request of its own. If they are not, the worker lists what
//	    follows the object every two seconds, until the caches show all of it once.
//	H4  The worker does not wait for versions that the API server has not reached itself. They come with objects that are restored
//	    from another cluster, because a restore keeps annotations. When objects have waited for more than two seconds, one request for
//	    each kind tells.
//	H5  The worker does not wait for informers that have stopped, nor for those of other namespaces: they see the next version only
//	    with the next bookmark.
type handovers struct {
	stores   *stores
	selector func() labels.Selector

	mu sync.Mutex
	// waits are the objects that wait.
	waits   map[objectKey]postponed
	metrics waitMetrics
	// passed are the handovers that are not compared again.
	passed  map[objectKey]string
	present *present
	swept   time.Time // when waits was last swept
}

// handed is an object with its handover, as a worker finds it.
type handed struct {
	metav1.Object

	key      objectKey
	value    string // the annotation
	versions contract.Handover
	now      time.Time
	wait     postponed
}

// postponed is the handover of an object that waits: since when, when this was last logged, when a worker last looked, and when it listed.
type postponed struct {
	handover                    string
	since, told, looked, listed time.Time
}

// newHandovers returns the handovers of the shards of a ring. The selector selects one of the shards.
func newHandovers(ring string, stores *stores, selector func() labels.Selector) *handovers {
	return &handovers{
		stores: stores, selector: selector,
		waits: map[objectKey]postponed{}, metrics: waitMetricsOf(ring), passed: map[objectKey]string{},
		present: &present{selector: selector, of: map[schema.GroupKind]*answer{}},
	}
}

// awaits returns what a cache has yet to reach before the object may be worked on, and when to look again, or "" if nothing. The error is that
// of a list, or errUndeclared.
func (h *handovers) awaits(ctx context.Context, key objectKey, obj metav1.Object, now time.Time) (missing string, after time.Duration, err error) {
	o := handed{Object: obj, key: key, value: obj.GetAnnotations()[h.stores.keys.Handover], now: now}
	if h.recall(&o) {
		return "", 0, nil
	}

	if o.versions, err = contract.ParseHandover(o.value); err != nil {
		log.FromContext(ctx).Error(err, "Ignoring the handover annotation, because it cannot be read",
			"annotation", h.stores.keys.Handover, "kind", key.Kind, "object", key.NamespacedName)
	}

	lag := h.compare(o)

	switch {
	case lag.undeclared != "":
		return "", 0, fmt.Errorf("the hand-over of %s %s names objects of resource %s, which is not declared: if the ring lists the resource, declare its kind "+
			"in shard.Options.Kinds, or call Shard.Handler for it. If not, remove the annotation %s from the object: %w",
			key.Kind, key.NamespacedName, lag.undeclared, h.stores.keys.Handover, errUndeclared)
	case lag.behind != nil && now.Sub(o.wait.since) >= recheck:
		if err := h.present.ask(ctx, o, lag.behind); err != nil {
			lag.missing += fmt.Sprintf(" (the API server cannot be asked for its version: %v)", err)
		}
	case lag.missing != "" || len(lag.unclear) == 0:
	case now.Sub(o.wait.listed) < recheck:
		lag.missing = "an object that a recent list contained"
	default:
		o.wait.listed = now
		if lag.missing, err = h.lists(ctx, o, lag.unclear); err != nil {
			return "", 0, err
		}
	}

	h.mu.Lock()
	defer h.mu.Unlock()

	h.sweep(now)

	if lag.missing == "" {
		h.passed[key] = o.value
		h.begins(o)

		return "", 0, nil
	}

	return lag.missing, h.waitsFor(ctx, o, lag.missing), nil
}

// recall reports whether the object has passed this handover, or has none. If not, it adds what is known about the wait.
func (h *handovers) recall(o *handed) bool {
	h.mu.Lock()
	defer h.mu.Unlock()

	if o.value == "" {
		delete(h.passed, o.key)
	}

	if h.passed[o.key] == o.value {
		h.begins(*o)

		return true
	}

	// What is known of former versions says nothing about these.
	if o.wait = h.waits[o.key]; o.wait.handover != o.value {
		o.wait = postponed{handover: o.value, since: o.now, told: o.now}
	}

	return false
}

// begins records that the worker may begin. The caller holds the lock.
func (h *handovers) begins(o handed) {
	if w, waits := h.waits[o.key]; waits {
		h.metrics.took.Observe(o.now.Sub(w.since).Seconds())
		h.ends(o.key)
	}
}

// waitsFor records that an object waits, and logs it from time to time. It returns when to look again. The caller holds the lock.
func (h *handovers) waitsFor(ctx context.Context, o handed, missing string) time.Duration {
	if _, waits := h.waits[o.key]; !waits {
		h.metrics.objects.Inc()
	}

	w, waited := o.wait, o.now.Sub(o.wait.since)
	if o.now.Sub(w.told) >= longWait {
		w.told = o.now
		log.FromContext(ctx).Info("Still waiting until the cache shows what follows the object", "kind", o.key.Kind, "object", o.key.NamespacedName,
			"missing", missing, "waited", waited.Round(time.Second).String())
	}

	w.looked = o.now
	h.waits[o.key] = w

	return min(max(soon, waited/between), seldom)
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

// lists returns an object that follows the given one and that is missing from the caches with incomparable versions, or "" if
// there is none.
func (h *handovers) lists(ctx context.Context, o handed, unclear []*store) (missing string, err error) {
	for _, c := range unclear {
		gk := c.form.gvk.GroupKind()

		err := c.pages(ctx, o.GetNamespace(), h.selector(), func(page *metav1.PartialObjectMetadataList) bool {
			i := slices.IndexFunc(page.Items, func(item metav1.PartialObjectMetadata) bool {
				by := metav1.GetControllerOfNoCopy(&item)

				return by != nil && by.UID == o.GetUID() && !h.shown(gk, &item)
			})
			if i >= 0 {
				missing = fmt.Sprintf("%s %s/%s", gk.Kind, page.Items[i].Namespace, page.Items[i].Name)
			}

			return i < 0
		})
		if err != nil {
			return "", fmt.Errorf("list the objects of kind %s that follow %s %s: %w", gk.Kind, o.key.Kind, o.key.NamespacedName, err)
		}

		if missing != "" {
			break
		}
	}

	return missing, nil
}

// shown reports whether all caches that can show an object do.
func (h *handovers) shown(gk schema.GroupKind, obj metav1.Object) bool {
	key := toolscache.NewObjectName(obj.GetNamespace(), obj.GetName()).String()

	return !slices.ContainsFunc(h.stores.showing(gk, obj.GetNamespace()), func(c *store) bool {
		_, there, err := c.GetByKey(key)

		return err != nil || !there
	})
}

// forget drops an object that does not exist any more, or belongs to another shard.
func (h *handovers) forget(key objectKey) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.ends(key)
	delete(h.passed, key)
}

// doubt makes every object compare its handover again: there is another cache, which may be behind.
func (h *handovers) doubt() {
	h.mu.Lock()
	defer h.mu.Unlock()

	clear(h.passed)
}

// lag is what the caches have yet to reach.
type lag struct {
	undeclared string   // the resource that is named and not declared, or ""
	missing    string   // what it is, or "" if nothing
	behind     *store   // the cache that has not reached it
	unclear    []*store // one for each kind whose versions cannot be compared
}

// compare compares the handover of an object with the caches.
func (h *handovers) compare(o handed) lag {
	var l lag

	for resource, version := range o.versions {
		found, err := h.stores.of(resource, o.GetNamespace())
		if errors.Is(err, errUndeclared) {
			return lag{undeclared: resource.String()}
		}

		if err != nil { // it may be the one that is named
			return lag{missing: err.Error()}
		}

		unclear := false

		for _, c := range found {
			is := c.LastStoreSyncResourceVersion()

			switch state := notOlder(is, version); {
			case !c.synced():
				return lag{missing: fmt.Sprintf("%s, which are not listed yet", resource)}
			case state == fresh || state == behind && h.present.ahead(c.form.gvk.GroupKind(), version, o.wait.since):
			case state == behind:
				return lag{missing: fmt.Sprintf("%s at version %s, which is at %s", resource, version, is), behind: c}
			case !unclear:
				unclear, l.unclear = true, append(l.unclear, c)
			}
		}
	}

	return l
}
