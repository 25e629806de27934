package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// firstRetry and maxRetry limit the time between attempts to reach the API server; it doubles in between.
	firstRetry = 500 * time.Millisecond
	maxRetry   = 30 * time.Second
)

// inventory ensures that no worker starts from a cache that is older than the shard's term: such a cache still contains
// objects that moved away while the Lease was free. It compares the cached state of an object with a list that was made
// after the Lease was taken and the hold-off had passed, once per kind and stretch of the term (T5).
//
//	F1  An object is worked on, or released, only when its cache shows it as it was when the API server listed the
//	    shard's objects, or later. If the list does not contain the object, the cached version must be newer than the
//	    list.
//	F2  The list contains the API server's latest state, after the hold-off. It therefore shows everything that happened
//	    while the Lease was free. From then on, no object leaves the shard without the shard's acknowledgement.
//	F3  While the API server does not answer, the shard keeps its Lease and works on nothing that was not confirmed
//	    before.
//	F4  A cache that is behind costs no requests: its next event, or another look after a while, shows the state.
//
// The cost is one request per 500 objects. The shard reads single objects only where necessary: for versions that are
// not numbers, and for an object that was listed and is not in the cache.
//
// # Rejected alternatives
//
//   - Waiting until the informers have reached the list's version: this takes up to a minute where nothing happens,
//     because informers learn the version from bookmarks.
//   - Reading each object before the first work on it: this takes as many requests as there are objects.
type inventory struct {
	shard *Shard
	kind  *kind
	busy  chan struct{} // full while a worker looks whether it must make the list, or makes it

	mu      sync.Mutex
	stretch int      // stretch of the term that all fields below belong to
	listing *listing // nil: there is none yet
	retry   wait.Backoff
	next    time.Time // after a request has failed, no other one is sent before
}

// retries is when to retry what fails. Half of each pause is jitter.
var retries = wait.Backoff{Duration: firstRetry / 2, Cap: maxRetry / 2, Factor: 2, Jitter: 1, Steps: math.MaxInt}

func newInventory(s *Shard, k *kind) *inventory {
	return &inventory{shard: s, kind: k, busy: make(chan struct{}, 1), retry: retries}
}

// errBehind is why to wait until the cache changes, or until the next attempt to reach the API server, whose failure
// was logged.
var errBehind = errors.New("the shard cannot confirm that its cache is up to date")

// prepare makes the list of this stretch of the term, unless it exists. One worker makes the list; the others wait. The
// error is a waitError if it is too early to ask the API server again.
func (i *inventory) prepare(ctx context.Context) error {
	select {
	case i.busy <- struct{}{}:
		defer func() { <-i.busy }()
	case <-ctx.Done():
		return fmt.Errorf("wait for the list of kind %s: %w", i.kind.gvk.Kind, context.Cause(ctx))
	}

	for {
		stretch, err := i.shard.term.current()
		if err != nil || stretch == 0 { // 0: no term exists that a cache could be older than
			return err
		}

		if exists, err := i.exists(stretch); exists || err != nil {
			return err
		}

		found, err := i.shard.listed(ctx, i.kind)
		if ctx.Err() != nil {
			return fmt.Errorf("list kind %s: %w", i.kind.gvk.Kind, context.Cause(ctx))
		}

		i.mu.Lock()
		i.listing = found
		i.answered(ctx, err)
		i.mu.Unlock()
	}
}

// exists reports whether there is a list of this stretch, or what must be waited for before one is made.
func (i *inventory) exists(stretch int) (bool, error) {
	i.mu.Lock()
	defer i.mu.Unlock()

	if stretch > i.stretch {
		i.stretch, i.listing, i.retry, i.next = stretch, nil, retries, time.Time{}
	}

	if wait := i.until(); i.listing == nil && wait > 0 {
		return false, waitError{errBehind, wait}
	}

	return i.listing != nil, nil
}

func (i *inventory) until() time.Duration { return i.next.Sub(i.shard.term.clock.Now()) }

// answered notes whether the API server has answered. If not, it logs why, and postpones the next attempt. If the
// worker was told to stop, this is not a failure.
func (i *inventory) answered(ctx context.Context, err error) {
	switch {
	case err == nil:
		i.retry, i.next = retries, time.Time{}
	case ctx.Err() == nil:
		i.next = i.shard.term.clock.Now().Add(i.retry.Step())

		log.FromContext(ctx).Error(err,
			"Working on nothing that was not confirmed in this term: the API server must confirm that the cache is up to date",
			"unconfirmedKind", i.kind.gvk.Kind, "retryAfter", i.until())
	}
}

// doubt makes the shard list the objects again: what was confirmed need not be in a cache that is new.
func (i *inventory) doubt() {
	i.mu.Lock()
	defer i.mu.Unlock()

	if i.listing != nil && i.listing.noted {
		i.listing = nil
	}
}

// confirm reports whether the cached state of an object, read after prepare, is as new as the term. If not, the worker
// must check the object again later. The error is a waitError if the process's caches disagree about the object.
func (i *inventory) confirm(ctx context.Context, name types.NamespacedName, cached view) (bool, error) {
	switch _, agree, err := i.kind.stores.look(ctx, i.kind.gvk.GroupKind(), name); {
	case err != nil:
		return false, err
	case !agree:
		return false, waitError{errBehind, soon}
	}

	stretch, err := i.shard.term.current()
	if err != nil || stretch == 0 {
		return err == nil, err
	}

	l, may, err := i.judge(stretch, name, cached)
	if err != nil || may != unsaid {
		return may == fresh, err
	}

	live, err := i.kind.live(ctx, name)

	i.mu.Lock()
	defer i.mu.Unlock()

	if i.answered(ctx, err); err != nil {
		return false, waitError{errBehind, max(i.until(), 0)}
	}

	if may = compare(cached, i.shard.view(live)); may == fresh {
		l.note(name, cached)
	}

	return may == fresh, nil
}

// judge returns how fresh the view is according to the list. The error is a waitError if it must be read, and the last
// read failed.
func (i *inventory) judge(stretch int, name types.NamespacedName, cached view) (*listing, freshness, error) {
	i.mu.Lock()
	defer i.mu.Unlock()

	l := i.listing
	if l == nil || i.stretch != stretch {
		return nil, behind, nil // the Lease was recreated just now
	}

	may := l.judge(name, cached)
	if _, listed := l.objects[name]; may == fresh && listed {
		l.note(name, cached)
	}

	if wait := i.until(); may == unsaid && wait > 0 {
		return l, behind, waitError{errBehind, wait}
	}

	return l, may, nil
}

const (
	// listPage is how many objects one request lists.
	listPage = 500
	// liveTimeout limits one request to the API server; a worker waits for it.
	liveTimeout = 30 * time.Second
)

// listing is the API server's answer about the shard's objects of one kind at one moment of the term, and the versions
// that one cache of them has been seen to reach since. It is not safe for concurrent use.
//
// It keeps a name and a version per object as long as the term lasts: about a tenth of what the cache keeps.
type listing struct {
	// revisions are the resource versions of the lists by namespace, where "" stands for all.
	revisions map[string]string
	// objects are the versions of the listed objects, or the value reached.
	objects map[types.NamespacedName]string
	// noted is true if something was noted.
	noted bool
}

// reached replaces the version of an object that the cache shows as it was at a moment of the term, or later.
const reached = ""

type freshness int

const (
	fresh  freshness = iota
	behind           // not yet
	unsaid           // the listing alone cannot tell: read the object itself
)

// judge returns how fresh the cache's view of an object is. Of two versions of a resource, the greater one is the later
// one (promised since Kubernetes 1.35, and true before). Versions that are not numbers are only compared for equality.
func (l *listing) judge(name types.NamespacedName, v view) freshness {
	version, listed := l.objects[name]
	switch {
	case listed && version == reached:
		return fresh
	case v.version == "" && listed:
		return unsaid // gone since, or not there yet
	case v.version == "":
		return fresh
	case listed:
		return notOlder(v.version, version)
	}

	revision, ok := l.revisions[name.Namespace]
	if !ok {
		revision, ok = l.revisions[metav1.NamespaceAll]
	}

	if !ok {
		return unsaid // the cache has more namespaces than declared
	}
	// The list does not contain the object, so it was not this shard's then. Either it is since, or the cache is older.
	if v.version == revision {
		return behind
	}

	return notOlder(v.version, revision)
}

// compare returns how fresh the cache's view is, given a live read after it: fresh or behind.
func compare(cached, live view) freshness {
	exists := cached.version != ""
	if exists == live.owned && (!exists || notOlder(cached.version, live.version) == fresh) {
		return fresh
	}

	return behind
}

// notOlder reports whether version a of an object was written with or after version b; unsaid for versions that are not
// numbers.
func notOlder(a, b string) freshness {
	if a == b {
		return fresh
	}

	switch order, err := resourceversion.CompareResourceVersion(a, b); {
	case err != nil:
		return unsaid
	case order < 0:
		return behind
	default:
		return fresh
	}
}

// note records that a view of the cache was fresh. It keeps only what the versions do not tell, and only as long as the
// cache contains the object: a cache never goes back.
func (l *listing) note(name types.NamespacedName, v view) {
	l.noted = true
	if v.version == "" {
		delete(l.objects, name)
	} else {
		l.objects[name] = reached
	}
}

// listed lists the shard's objects of the kind on the API server. The pages show one moment, which is not before the
// request.
func (s *Shard) listed(ctx context.Context, k *kind) (*listing, error) {
	namespaces, err := k.namespaces()
	if err != nil {
		return nil, err
	}

	l := &listing{revisions: map[string]string{}, objects: map[types.NamespacedName]string{}}

	for _, namespace := range namespaces {
		for o := (metav1.ListOptions{LabelSelector: s.Selector().String(), Limit: listPage}); ; {
			page, err := k.page(ctx, namespace, o)
			if err != nil {
				return nil, fmt.Errorf("list this shard's objects of kind %s: %w", k.gvk.Kind, err)
			}

			l.revisions[namespace] = cmp.Or(l.revisions[namespace], page.ResourceVersion)

			for i := range page.Items {
				item := &page.Items[i]
				l.objects[types.NamespacedName{Namespace: item.Namespace, Name: item.Name}] = item.ResourceVersion
			}

			if o.Continue = page.Continue; o.Continue == "" {
				break
			}
		}
	}

	return l, nil
}

// endpoint is how to reach the API server about one resource. It returns nil before the shard knows how.
type endpoint func() (metadata.Getter, error)

func (e endpoint) page(
	ctx context.Context, namespace string, o metav1.ListOptions,
) (*metav1.PartialObjectMetadataList, error) {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()

	r, err := e()
	if err != nil {
		return nil, err
	}

	if r == nil {
		return nil, errNoEndpoint
	}

	return r.Namespace(namespace).List(ctx, o) //nolint:wrapcheck // the caller says what for
}

var errNoEndpoint = errors.New("the shard does not know the API server yet")
