package shard

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// firstRetry and maxRetry bound the time between attempts to reach the API server; it doubles in between.
	firstRetry = 500 * time.Millisecond
	maxRetry   = 30 * time.Second
)

// inventory makes sure that no worker begins from a cache that is older than the shard's term: what moved away while the
// Lease was free is still there. It compares what the cache says of an object with a list that was made after the Lease was
// taken and the hold-off had passed, once per kind and stretch of the term (T5).
//
//	F1  An object is worked on, or given up, only when its cache shows it as it was when the API server listed the shard's
//	    objects, or later. What is not on the list is worked on only in a version that is newer than the list.
//	F2  The list is of the API server's latest state, after the hold-off. So it shows all that happened while the Lease was
//	    free; and from then on nothing leaves the shard without its acknowledgement.
//	F3  While the API server does not answer, the shard keeps its Lease and works on nothing that was not confirmed before.
//	F4  A cache that is behind costs no requests: its next event, or another look after a while, tells.
//
// It costs one request for 500 objects. What was refused costs more: to wait until the informers have reached the list's
// version takes up to a minute where nothing happens, because they learn of it by bookmarks; to read each object when it is
// first worked on takes as many requests as there are objects. That is done only where it must be: if the shard may not
// list, for versions that are no numbers, and for an object that was listed and is not in the cache.
type inventory struct {
	shard *Shard
	kind  *kind

	mu      sync.Mutex
	stretch int           // of the term, that all below is of
	listing *listing      // nil: there is none yet
	loading chan struct{} // closed when the list that is being made is there, or has failed; nil: none is
	lists   backoff
	reads   backoff
}

// backoff is when to try again what has failed.
type backoff struct {
	failures int
	at       time.Time
}

func (b *backoff) failed(now time.Time) {
	half := min(firstRetry<<min(b.failures, 10), maxRetry) / 2
	b.failures++
	b.at = now.Add(wait.Jitter(half, 1))
}

// retryError says how long to wait for the next attempt to reach the API server. The failure was logged.
type retryError time.Duration

func (e retryError) Error() string {
	return fmt.Sprintf("the shard cannot confirm that its cache is up to date, and tries again in %s", time.Duration(e))
}

// prepare makes the list of this stretch of the term, unless there is one, or the object was confirmed without. One worker
// makes it, the others wait. The error is a retryError if the API server must not be asked yet.
func (i *inventory) prepare(ctx context.Context, name types.NamespacedName) error {
	for {
		stretch, err := i.shard.term.current()
		if err != nil || stretch == 0 { // 0: there is no term that a cache could be older than
			return err
		}

		loading, mine, err := i.turn(stretch, name)
		switch {
		case err != nil || loading == nil:
			return err
		case mine:
			i.load(ctx, stretch)
		default:
			select {
			case <-ctx.Done():
				return fmt.Errorf("wait for the list of kind %s: %w", i.kind.gvk.Kind, context.Cause(ctx))
			case <-loading:
			}
		}
	}
}

// turn says whose turn it is to make the list: the caller's, or that of a worker who has begun; nobody's if loading is nil.
func (i *inventory) turn(stretch int, name types.NamespacedName) (loading <-chan struct{}, mine bool, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()

	if stretch > i.stretch {
		i.stretch, i.listing, i.lists, i.reads = stretch, nil, backoff{}, backoff{}
	}
	if i.loading != nil {
		return i.loading, false, nil
	}
	wait := i.until(i.lists)
	switch {
	case i.listing != nil && (i.listing.revisions != nil || wait > 0 || i.listing.knows(name)):
		return nil, false, nil
	case wait > 0:
		return nil, false, retryError(wait)
	}
	i.loading = make(chan struct{})

	return i.loading, true, nil
}

func (i *inventory) until(b backoff) time.Duration { return b.at.Sub(i.shard.term.clock.Now()) }

// load makes the list, and lets those who wait for it look again.
func (i *inventory) load(ctx context.Context, stretch int) {
	var found *listing
	var err error
	// Also if it panics: the others must not wait for ever.
	defer func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		close(i.loading)
		i.loading = nil
		if i.stretch != stretch {
			return
		}
		if found != nil && (found.revisions != nil || i.listing == nil) {
			i.listing = found
		}
		if err != nil {
			i.failed(ctx, &i.lists, err)
		}
	}()
	found, err = i.shard.listed(ctx, i.kind)
}

// failed logs why the API server did not answer, and puts off the next attempt. A worker that was told to stop is no failure.
func (i *inventory) failed(ctx context.Context, b *backoff, err error) {
	if ctx.Err() != nil {
		return
	}
	b.failed(i.shard.term.clock.Now())

	message := "Works on nothing that was not confirmed in this term: the API server must say that the cache is up to date"
	if apierrors.IsForbidden(err) {
		message = "Must ask for each object of the kind before it is first worked on: grant the shard get and list on the kind " +
			"in the namespaces of its cache"
	}
	log.FromContext(ctx).Error(err, message, "unconfirmedKind", i.kind.gvk.Kind, "failures", b.failures, "retryAfter", i.until(*b))
}

// confirm reports whether what the cache says of an object, read after prepare, is no older than the term. If it is not, the
// object is to be looked at again later.
func (i *inventory) confirm(ctx context.Context, name types.NamespacedName, cached view) (bool, error) {
	stretch, err := i.shard.term.current()
	if err != nil || stretch == 0 {
		return err == nil, err
	}
	l, may, err := i.judge(stretch, name, cached)
	if err != nil || may != unsaid {
		return may == fresh, err
	}

	live, err := i.read(ctx, name)
	i.mu.Lock()
	defer i.mu.Unlock()
	if err != nil {
		i.failed(ctx, &i.reads, err)

		return false, retryError(max(i.until(i.reads), 0))
	}
	i.reads = backoff{}
	if may = compare(cached, live); may == fresh {
		l.note(name, cached)
	}

	return may == fresh, nil
}

// judge says by the list how fresh the view is. The error is a retryError if the object must be read, and that failed lately.
func (i *inventory) judge(stretch int, name types.NamespacedName, cached view) (*listing, freshness, error) {
	i.mu.Lock()
	defer i.mu.Unlock()

	l := i.listing
	if l == nil || i.stretch != stretch {
		return nil, behind, nil // the Lease was made anew just now
	}
	may := l.judge(name, cached)
	if may == fresh && l.knows(name) {
		l.note(name, cached)
	}
	if wait := i.until(i.reads); may == unsaid && wait > 0 {
		return l, behind, retryError(wait)
	}

	return l, may, nil
}

// read reads what the API server says of the object.
func (i *inventory) read(ctx context.Context, name types.NamespacedName) (view, error) {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	obj, err := i.kind.live(ctx, name)
	if apierrors.IsNotFound(err) {
		return view{}, nil
	}
	if err != nil {
		return view{}, fmt.Errorf("read %s %s from the API server: %w", i.kind.gvk.Kind, name, err)
	}

	return i.shard.view(obj), nil
}
