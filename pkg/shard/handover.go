package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

const (
	// soon is when a worker first checks again whether its caches have reached a handover; seldom is when it does after a
	// while, and between is the part of the time since when it waits. A check sends no request.
	soon, seldom, between = 50 * time.Millisecond, 5 * time.Second, 4
	// longWait is how long a worker waits for its caches before it logs.
	longWait = 10 * time.Second
)

// handovers ensure that no worker starts on an object before its caches show all objects that follow the object. A
// controller that counts its children in a stale cache creates too many of them.
//
//	H1  A worker works on an object, and on what follows it, only after the process's caches have reached the versions in
//	    the handover annotation (contract.Handover). The writes behind these versions are events of the same caches, so
//	    they arrive without further requests. A cache does not go back, so an object does not wait twice for the same
//	    versions.
//	H2  The worker does not wait for kinds that the process does not cache. A kind that is not declared could be cached
//	    unseen: a handover that names it is an error.
//	H3  An object that waits sends no request of its own. A version that cannot be compared, because it is not a number,
//	    is not waited for.
//	H4  The worker does not wait for versions that the API server has not reached itself. They come with objects that are
//	    restored from another cluster, because a restore keeps annotations. When objects have waited for more than two
//	    seconds, one request for each kind tells; one of their workers waits for the answer.
//	H5  The worker does not wait for informers that have stopped, nor for those of other namespaces: they see the next
//	    version only with the next bookmark.
type handovers struct {
	stores *stores

	mu sync.Mutex
	// waits are the objects that wait.
	waits   map[objectKey]postponed
	waiting prometheus.Gauge
	waited  prometheus.Observer
	// passed are the handovers that are not compared again.
	passed map[objectKey]string
	// selector is that of the shard, all that it may list, and answers are what the API server said of each kind.
	selector func() labels.Selector
	answers  map[schema.GroupKind]answer
}

// answer is the version that a kind had reached after a request was sent.
type answer struct {
	version string
	sent    time.Time // zero: none was answered
	next    time.Time // before this time, no other request is sent
	err     error     // why the last request failed
}

type handed struct {
	metav1.Object

	key      objectKey
	value    string // the annotation
	versions contract.Handover
	now      time.Time
	wait     postponed
}

// postponed is the handover of an object that waits: since when, and when that was logged.
type postponed struct {
	handover    string
	since, told time.Time
}

// newHandovers returns the handovers of the shards of a ring. The selector selects one of the shards.
func newHandovers(ring string, stores *stores, selector func() labels.Selector) *handovers {
	return &handovers{
		stores: stores,
		waits:  map[objectKey]postponed{}, passed: map[objectKey]string{},
		waiting: waitingObjects.WithLabelValues(ring), waited: waitedSeconds.WithLabelValues(ring),
		selector: selector, answers: map[schema.GroupKind]answer{},
	}
}

// awaits returns what a cache has yet to reach before work on the object, and when to look again, or "". The error is
// errUndeclared.
func (h *handovers) awaits(
	ctx context.Context, key objectKey, obj metav1.Object, now time.Time,
) (missing string, after time.Duration, err error) {
	o := handed{Object: obj, key: key, value: obj.GetAnnotations()[h.stores.keys.Handover], now: now}
	if h.recall(&o) {
		return "", 0, nil
	}

	if o.versions, err = contract.ParseHandover(o.value); err != nil {
		log.FromContext(ctx).Error(err, "Ignoring the handover annotation, because it cannot be read",
			"annotation", h.stores.keys.Handover, "kind", key.Kind, "object", key.NamespacedName)
	}

	missing, lagging, err := h.compare(o)
	if lagging != nil && now.Sub(o.wait.since) >= recheck {
		failure := h.ask(ctx, o, lagging)
		missing, _, err = h.compare(o)

		if failure != nil && missing != "" {
			missing += fmt.Sprintf(" (the API server cannot be asked for its version: %v)", failure)
		}
	}

	if err != nil {
		return "", 0, err
	}

	h.mu.Lock()
	defer h.mu.Unlock()

	if missing == "" {
		h.passed[key] = o.value
		h.begins(o)

		return "", 0, nil
	}

	return missing, h.waitsFor(ctx, o, missing), nil
}

// recall reports whether the object has passed this handover, or has none. If not, it adds what is known of the wait.
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
		h.waited.Observe(o.now.Sub(w.since).Seconds())
		h.ends(o.key)
	}
}

// waitsFor records that an object waits, and logs it now and then. It returns when to look. The caller holds the lock.
func (h *handovers) waitsFor(ctx context.Context, o handed, missing string) time.Duration {
	w, waited := o.wait, o.now.Sub(o.wait.since)
	if o.now.Sub(w.told) >= longWait {
		w.told = o.now
		log.FromContext(ctx).Info("Still waiting until the cache shows what follows the object", "kind", o.key.Kind,
			"object", o.key.NamespacedName,
			"missing", missing, "waited", waited.Round(time.Second).String())
	}

	h.waits[o.key] = w
	h.waiting.Set(float64(len(h.waits)))

	return min(max(soon, waited/between), seldom)
}

// ends records that an object no longer waits. The caller holds the lock.
func (h *handovers) ends(key objectKey) {
	delete(h.waits, key)
	h.waiting.Set(float64(len(h.waits)))
}

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

// compare returns what the caches have yet to reach of the handover of an object, or "" if nothing, and the one that
// has not reached it. The error is errUndeclared.
func (h *handovers) compare(o handed) (missing string, lagging *store, err error) {
	for resource, version := range o.versions {
		found, err := h.stores.of(resource, o.GetNamespace())
		if errors.Is(err, errUndeclared) {
			return "", nil, fmt.Errorf("the hand-over of %s %s names objects of resource %s, which is not declared: if the "+
				"ring lists the resource, declare its kind "+
				"in shard.Options.Kinds, or call Shard.Handler for it. If not, remove the annotation %s from the object: %w",
				o.key.Kind, o.key.NamespacedName, resource, h.stores.keys.Handover, err)
		}

		if err != nil { // it may be the one that is named
			return err.Error(), nil, nil //nolint:nilerr // it is what is missing
		}

		for _, c := range found {
			if !c.synced() {
				return fmt.Sprintf("%s, which are not listed yet", resource), nil, nil
			}

			is := c.LastStoreSyncResourceVersion()
			if notOlder(is, version) == behind && !h.unreached(c, version, o.wait.since) {
				return fmt.Sprintf("%s at version %s, which is at %s", resource, version, is), c, nil
			}
		}
	}

	return "", nil, nil
}

// unreached reports whether the API server had not reached the version of what a store shows after the given time.
func (h *handovers) unreached(c *store, version string, since time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()

	a := h.answers[c.form.gvk.GroupKind()]

	return !a.sent.Before(since) && notOlder(a.version, version) == behind
}

// ask asks the API server for the version of what a store shows, unless the answer to an earlier request is good enough
// for the object, another worker asks, or one did a moment ago. It returns why the last request failed. A list without
// a resourceVersion is at least as new as everything that was written before it was sent.
func (h *handovers) ask(ctx context.Context, o handed, c *store) error {
	gk := c.form.gvk.GroupKind()

	h.mu.Lock()
	a := h.answers[gk]
	may := a.sent.Before(o.wait.since) && !o.now.Before(a.next)

	if may {
		a.next = o.now.Add(liveTimeout)
		h.answers[gk] = a
	}
	h.mu.Unlock()

	if !may {
		return a.err
	}

	page, err := c.page(ctx, cmp.Or(o.GetNamespace(), c.namespace),
		metav1.ListOptions{LabelSelector: h.selector().String(), Limit: 1})
	if a.next, a.err = o.now.Add(recheck), err; err == nil {
		a.version, a.sent = page.ResourceVersion, o.now
	}

	h.mu.Lock()
	defer h.mu.Unlock()

	h.answers[gk] = a

	return err
}
