package shard

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// firstRetry and maxRetry limit the time between attempts to reach the API server; it doubles in between.
	firstRetry = 500 * time.Millisecond
	maxRetry   = 30 * time.Second
)

// inventory ensures that no worker starts from a cache that is older than the shard's term: such a cache still contains objects
// that moved away while the Lease was free. It compares the cached state of an object with a list that was made after the
// Lease was taken and the hold-off had passed, once per kind and stretch of the term (T5).
//
//	F1  An object is worked on, or released, only when its cache shows it as it was when the API server listed the shard's
//	    objects, or later. If the list does not contain the object, the cached version must be newer than the list.
//	F2  The list contains the API server's latest state, after the hold-off. It therefore shows everything that happened while
//	    the Lease was free. From then on, no object leaves the shard without the shard's acknowledgement.
//	F3  While the API server does not answer, the shard keeps its Lease and works on nothing that was not confirmed before.
//	F4  A cache that is behind costs no requests: its next event, or another look after a while, shows the state.
//
// The cost is one request per 500 objects. The shard reads single objects only where necessary: for versions that are not
// numbers, and for an object that was listed and is not in the cache.
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

// retries is when to retry what fails.
var retries = wait.Backoff{Duration: firstRetry / 2, Cap: maxRetry / 2, Factor: 2, Jitter: 1, Steps: math.MaxInt} //nolint:mnd // the jitter is the other half

// newInventory returns the inventory of the kind.
func newInventory(s *Shard, k *kind) *inventory {
	return &inventory{shard: s, kind: k, busy: make(chan struct{}, 1), retry: retries}
}

// retryError is the wait until the next attempt to reach the API server. The failure was logged.
type retryError time.Duration

func (e retryError) Error() string {
	return fmt.Sprintf("the shard cannot confirm that its cache is up to date, and retries in %s", time.Duration(e))
}

// prepare makes the list of this stretch of the term, unless it exists. One worker makes the list; the others wait. The error is a retryError if it is
// too early to ask the API server again.
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

		i.put(ctx, found, err)
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
		return false, retryError(wait)
	}

	return i.listing != nil, nil
}

func (i *inventory) until() time.Duration { return i.next.Sub(i.shard.term.clock.Now()) }

// put notes what was listed, or why nothing was.
func (i *inventory) put(ctx context.Context, found *listing, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()

	i.listing = found
	i.answered(ctx, err)
}

// answered notes whether the API server has answered. If not, it logs why, and postpones the next attempt. If the worker was told to stop, this is not a
// failure.
func (i *inventory) answered(ctx context.Context, err error) {
	switch {
	case err == nil:
		i.retry, i.next = retries, time.Time{}
	case ctx.Err() == nil:
		i.next = i.shard.term.clock.Now().Add(i.retry.Step())

		log.FromContext(ctx).Error(err, "Working on nothing that was not confirmed in this term: the API server must confirm that the cache is up to date",
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

// confirm reports whether the cached state of an object, read after prepare, is as new as the term. If not, the worker must check
// the object again later. The error is a retryError if the process's caches disagree about the object.
func (i *inventory) confirm(ctx context.Context, name types.NamespacedName, cached view) (bool, error) {
	switch _, agree, err := i.kind.stores.look(ctx, i.kind.gvk.GroupKind(), name); {
	case err != nil:
		return false, err
	case !agree:
		return false, retryError(soon)
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
		return false, retryError(max(i.until(), 0))
	}

	if may = compare(cached, i.shard.view(live)); may == fresh {
		l.note(name, cached)
	}

	return may == fresh, nil
}

// judge returns how fresh the view is according to the list. The error is a retryError if the object must be read, and a recent
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
		return l, behind, retryError(wait)
	}

	return l, may, nil
}
