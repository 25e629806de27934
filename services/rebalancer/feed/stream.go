package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/services/internal/resources"
)

const (
	// silence is how long a watch may deliver nothing until a list shows the current objects. API servers send a
	// bookmark every minute to clients that request it. A busy API server may send one up to 90 s late. If an API
	// server sends no bookmarks, this costs a list now and then.
	silence = 150 * time.Second
	// calm is how long a watch must have lasted for the next one to be opened without a pause.
	calm = 10 * time.Second
	// brief is how many watches in a row may end earlier until this is reported.
	brief = 5
)

// Sink receives what a [Stream] sees. One goroutine calls its methods in order. A call that blocks holds the stream
// back.
type Sink interface {
	// Begin reports that a list begins, immediately or after a pause: earlier sights may be outdated. If the list
	// begins after a pause, Begin is called again.
	Begin()
	// Present reports an object that matches: it was listed, or has changed.
	Present(ctx context.Context, o Object)
	// Gone reports that the object no longer matches, or was deleted, by the given resource version.
	Gone(id ID, resourceVersion string)
	// Listed reports that the list is complete: later calls report changes since.
	Listed(ctx context.Context)
	// Failed reports that the stream cannot be read, and why; the stream retries. A nil error reports that it can be
	// read.
	Failed(err error)
}

// Stream follows the objects that match a label selector: it lists them, then watches from there, and lists again when
// the API server no longer has the history. Create it with [NewStream].
//
// Invariants:
//
//  1. Present reports every object that matches when a list begins, or that matches later, if the stream can be read.
//  2. While the stream cannot be read, the last call was Failed with an error. While a list is missing, the last call
//     was Begin.
//  3. A watch that delivers nothing, not even a bookmark, is not trusted for longer than silence.
//  4. A new selector takes effect without a list, unless one is requested. Without a list, Present reports the objects
//     that come to match it after the last event of the old one. It does not report objects that already match the new
//     selector and did not match the old one.
type Stream struct {
	client *Client
	sink   Sink
	clock  clock.Clock
	scope  Scope
	// asked contains the latest request, until Run takes it.
	asked chan request
	// opened is how many watches in a row were opened and have not lasted for calm. Only Run uses it.
	opened int
}

// request is a label selector, and whether the objects that match it have to be listed.
type request struct {
	selector string
	list     bool
}

// NewStream returns a stream of the objects of a scope. Run it once.
func NewStream(c *Client, scope Scope, sink Sink, clk clock.Clock) *Stream {
	return &Stream{client: c, sink: sink, clock: clk, scope: scope, asked: make(chan request, 1)}
}

// Select sets a label selector, and requests a list of what matches it. Such a list begins at once unless the last one
// has failed: the caller limits how many there are. A list in progress is completed before. Select returns immediately.
// Only one goroutine may call it.
func (s *Stream) Select(selector string, list bool) {
	select {
	case before := <-s.asked: // it was not taken
		list = list || before.list
	default:
	}

	s.asked <- request{selector, list}
}

// take applies a request, and returns the version from which to continue; empty for a list.
func (s *Stream) take(r request, version string) string {
	if s.scope.Selector = r.selector; r.list {
		return ""
	}

	return version
}

// errRelist ends a watch if the API server no longer has its history, or if the history belongs to another state of the
// storage.
var errRelist = errors.New("the history is gone")

// Run follows the stream until ctx ends.
func (s *Stream) Run(ctx context.Context) {
	pauses := Pauses(s.scope.GVR.String()+" "+s.scope.Selector, 200*time.Millisecond, 30*time.Second)
	next, version := pauses, ""

	for ctx.Err() == nil {
		select {
		case r := <-s.asked: // even if the API server accepts no watch for a long time
			version = s.take(r, version)
		default:
		}

		began, listing := s.clock.Now(), version == ""

		var err error
		if listing {
			version, err = s.list(ctx)
		} else {
			version, err = s.follow(ctx, version)
		}

		lasted := s.clock.Since(began) >= calm
		if lasted {
			next = pauses
		}

		switch {
		case ctx.Err() != nil || err == nil && (listing || lasted || version == ""):
			continue
		case errors.Is(err, errRelist):
			version = ""
			s.sink.Begin() // nothing is reported during the pause
		case err != nil:
			s.sink.Failed(err)
		}

		asked := s.asked
		if version == "" { // a list that fails is not repeated because it is requested
			asked = nil
		}

		select {
		case <-ctx.Done():
		case r := <-asked:
			version = s.take(r, version)
		case <-s.clock.After(next.Step()):
		}
	}
}

// list reports all objects that match, and returns the version from which to watch.
func (s *Stream) list(ctx context.Context) (version string, err error) {
	s.sink.Begin()

	version, err = s.client.All(ctx, s.clock, s.scope, func(o Object) error {
		s.sink.Present(ctx, o)
		return ctx.Err()
	})
	if err != nil {
		return "", err
	}

	if version == "" { // such a resource is not in the storage, and the next list would follow at once
		return "", fmt.Errorf("list %s: the list has no resource version from which to watch", s.scope.GVR.GroupResource())
	}

	s.sink.Listed(ctx)
	s.well()

	return version, nil
}

// well reports that the stream can be read, unless its watches end at once, again and again.
func (s *Stream) well() {
	if s.opened <= brief {
		s.sink.Failed(nil)
		return
	}

	s.sink.Failed(fmt.Errorf("watch %s: again and again, the watch ends within %s; "+
		"find out what ends it between the rebalancer and the API server",
		s.scope.GVR.GroupResource(), calm))
}

// follow watches until the watch ends, and returns the version from which to continue.
func (s *Stream) follow(ctx context.Context, version string) (string, error) {
	w, err := s.open(ctx, version)
	if err != nil {
		return version, err
	}
	defer func() { w.Stop() }()

	s.opened++
	s.well()

	silent, calmed := s.clock.NewTimer(silence), s.clock.NewTimer(calm)
	defer silent.Stop()
	defer calmed.Stop()

	for {
		select {
		case <-ctx.Done():
			return version, ctx.Err() //nolint:wrapcheck // the caller's own
		case <-silent.C():
			return "", nil // after a restore of its storage, an API server reports nothing below the version
		case <-calmed.C():
			reported := s.opened > brief
			if s.opened = 0; reported {
				s.sink.Failed(nil)
			}
		case r := <-s.asked:
			if version = s.take(r, version); version == "" {
				s.opened--
				return "", nil
			}

			// The old watch stays open until the new one is open.
			other, err := s.open(ctx, version)
			if err != nil {
				return version, err
			}

			w.Stop()
			w = other
		case event, ok := <-w.ResultChan():
			if !ok {
				return version, nil
			}

			if version, err = s.event(ctx, version, event); err != nil {
				return version, err
			}

			silent.Reset(silence) // the sink may have blocked for some time
		}
	}
}

// open watches from a resource version on, with bookmarks.
func (s *Stream) open(ctx context.Context, version string) (watch.Interface, error) {
	opts := s.scope.options()
	opts.AllowWatchBookmarks, opts.ResourceVersion = true, version

	w, err := s.client.server.Watch(ctx, s.scope.GVR, s.scope.Namespace, opts)

	if history(err) {
		return nil, errRelist
	}

	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", s.scope.GVR.GroupResource(), err)
	}

	return w, nil
}

// history reports whether the API server cannot continue from a resource version: the version is too old, or newer than
// all existing versions, as after a restore of the storage.
func history(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// event passes on one event, and returns the version from which to continue.
func (s *Stream) event(ctx context.Context, version string, event watch.Event) (string, error) {
	if event.Type == watch.Error {
		err := apierrors.FromObject(event.Object)
		if history(err) {
			return version, errRelist
		}

		return version, fmt.Errorf("watch %s: %w", s.scope.GVR.GroupResource(), err)
	}

	m, ok := event.Object.(*metav1.PartialObjectMetadata)
	if !ok {
		return version, nil
	}

	if Older(m.ResourceVersion, version) {
		return version, errRelist // versions decrease only after a restore of the storage
	}

	//exhaustive:ignore
	switch event.Type {
	case watch.Added, watch.Modified:
		s.sink.Present(ctx, s.client.Object(s.scope.GVR, m))
	case watch.Deleted:
		s.sink.Gone(ID{GVR: s.scope.GVR, Namespace: m.Namespace, Name: m.Name}, m.ResourceVersion)
	}

	return m.ResourceVersion, nil
}

const (
	// PageSize is the number of objects in one page of a list. With 2 to 5 KiB of metadata per object, a page has 2 to
	// 5 MiB.
	PageSize = 1000
	// largePage is the size of further pages of a list after smallPages pages. To answer a page, an API server collects
	// everything that is left to list: a million objects in pages of 1,000 cost it 70 s of CPU, and in large pages a
	// fifth of that.
	largePage  = 5 * PageSize
	smallPages = 5
)

// stalled is how long a streaming list may deliver nothing. An API server that does not know streaming lists delivers
// only changes, and never ends the list.
const stalled = 30 * time.Second

// errNoStream reports that the API server does not serve a list as a stream, or ended the stream early.
var errNoStream = errors.New("the API server does not serve streaming lists")

// Scope selects what to list or watch.
type Scope struct {
	GVR schema.GroupVersionResource
	// Namespace restricts the scope to one namespace; empty means all namespaces.
	Namespace string
	// Selector is a label selector; empty selects everything.
	Selector string
	// Fields is a field selector; empty selects everything.
	Fields string
}

func (s Scope) options() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: s.Selector, FieldSelector: s.Fields}
}

// All passes the objects that match a scope to yield, one after another, and returns the resource version from which a
// watch can continue. It ends with the error of yield or of the API server. An object that changes meanwhile may be
// passed more than once.
//
// The API server sends the objects as a stream. Its cost per object does not depend on their number
// (https://kep.k8s.io/3157). All uses pages if the API server does not serve streams, or ends the stream early. It does
// the latter if more is written meanwhile than it keeps for one watcher; the next stream would also end early.
func (c *Client) All(
	ctx context.Context, clk clock.Clock, scope Scope, yield func(Object) error,
) (resourceVersion string, err error) {
	version, err := c.streamed(ctx, clk, scope, yield)
	if !errors.Is(err, errNoStream) {
		return version, err
	}

	return c.pages(ctx, scope, yield)
}

func (c *Client) streamed(ctx context.Context, clk clock.Clock, scope Scope, yield func(Object) error) (string, error) {
	opts := scope.options()
	opts.AllowWatchBookmarks = true
	opts.SendInitialEvents = new(true)
	opts.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan

	w, err := c.server.Watch(ctx, scope.GVR, scope.Namespace, opts)

	switch {
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsMethodNotSupported(err):
		return "", errNoStream // an otherwise invalid request also fails in pages
	case err != nil:
		return "", fmt.Errorf("list %s: %w", scope.GVR.GroupResource(), err)
	}

	defer w.Stop()

	silent := clk.NewTimer(stalled)
	defer silent.Stop()

	for {
		select {
		case <-ctx.Done():
			return "", ctx.Err() //nolint:wrapcheck // the caller's own
		case <-silent.C():
			return "", errNoStream
		case event, open := <-w.ResultChan():
			m, ok := event.Object.(*metav1.PartialObjectMetadata)

			switch {
			case !open:
				return "", errNoStream
			case event.Type == watch.Error:
				return "", fmt.Errorf("list %s: %w", scope.GVR.GroupResource(), apierrors.FromObject(event.Object))
			case !ok:
			case event.Type == watch.Bookmark && m.Annotations[metav1.InitialEventsAnnotationKey] == "true":
				return m.ResourceVersion, nil
			case event.Type == watch.Added, event.Type == watch.Modified:
				if err := yield(c.Object(scope.GVR, m)); err != nil {
					return "", err
				}
			}

			silent.Reset(stalled) // yield may have taken some time
		}
	}
}

// pages does the same as [Client.All] in pages, of which it holds one at a time. They come from the storage: a list at
// resource version 0 would come in one piece.
//
// If the API server has compacted the list before the last page, the list continues from the same place at a newer
// version. pages then returns the version of the first page, so that a watch sees all changes since.
func (c *Client) pages(ctx context.Context, scope Scope, yield func(Object) error) (resourceVersion string, err error) {
	opts := scope.options()

	for n := 0; ; n++ {
		if opts.Limit = PageSize; n >= smallPages {
			opts.Limit = largePage
		}

		list, err := c.server.List(ctx, scope.GVR, scope.Namespace, opts)

		switch next := resources.Continuation(err); {
		case next != "" && next != opts.Continue:
			opts.Continue = next
			continue
		case err != nil:
			return "", fmt.Errorf("list %s: %w", scope.GVR.GroupResource(), err)
		}

		resourceVersion = cmp.Or(resourceVersion, list.ResourceVersion)

		for i := range list.Items {
			if err := yield(c.Object(scope.GVR, &list.Items[i])); err != nil {
				return "", err
			}
		}

		if list.Continue == "" {
			return resourceVersion, nil
		}

		opts.Continue = list.Continue
	}
}

// Pauses returns the pauses between attempts. Each is twice as long as the previous one, from the first to the longest.
// All are up to a fifth longer, which depends on a name: sources that fail together do not retry together, but a run
// can be repeated exactly.
func Pauses(name string, first, longest time.Duration) wait.Backoff {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails
	spread := 1 + float64(h.Sum64()%1000)/5000

	return wait.Backoff{
		Duration: time.Duration(spread * float64(first)), Cap: time.Duration(spread * float64(longest)),
		Factor: 2, Steps: math.MaxInt,
	}
}
