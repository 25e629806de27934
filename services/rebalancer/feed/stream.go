package feed

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"
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
	Listed()
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
//  2. While the stream cannot be read, the last call was Failed with an error. While a list is missing, the last call was
//     Begin.
//  3. A watch that delivers nothing, not even a bookmark, is not trusted for longer than silence.
//  4. A new selector takes effect without a list. Present reports the objects that come to match it after the last event
//     of the old one. It does not report objects that already match the new selector and did not match the old one: the
//     caller of Select knows and lists them.
type Stream struct {
	client *Client
	sink   Sink
	clock  clock.Clock
	scope  Scope
	// selected contains the latest selector, until Run takes it.
	selected chan string
	// again requests another list.
	again chan struct{}
	// opened is how many watches in a row were opened and have not lasted for calm. Only Run uses it.
	opened int
}

// NewStream returns a stream of the objects of a scope. Run it once.
func NewStream(c *Client, scope Scope, sink Sink, clk clock.Clock) *Stream {
	return &Stream{client: c, sink: sink, clock: clk, scope: scope, selected: make(chan string, 1), again: make(chan struct{}, 1)}
}

// Select sets another label selector. It returns immediately. Only one goroutine may call it.
func (s *Stream) Select(selector string) {
	select {
	case <-s.selected: // the previous one was not taken
	default:
	}

	s.selected <- selector
}

// Relist requests another list, which begins at once unless the last one has failed: the caller limits how many there
// are. It returns immediately and is safe for concurrent use.
func (s *Stream) Relist() {
	select {
	case s.again <- struct{}{}:
	default:
	}
}

// errRelist ends a watch if the API server no longer has its history, or if the history belongs to another state of the
// storage.
var errRelist = errors.New("the history is gone")

// Run follows the stream until ctx ends.
func (s *Stream) Run(ctx context.Context) {
	next, version := Attempts(s.scope.GVR.String()+" "+s.scope.Selector), ""

	for ctx.Err() == nil {
		select {
		case <-s.again: // even if the API server accepts no watch for a long time
			version = ""
		default:
		}

		select {
		case s.scope.Selector = <-s.selected:
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
			next.Reset()
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

		again := s.again
		if version == "" { // a list that fails is not repeated because it is requested
			again = nil
		}

		select {
		case <-ctx.Done():
		case <-again:
			version = ""
		case <-s.clock.After(next.Next()):
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

	s.sink.Listed()
	s.well()

	return version, nil
}

// well reports that the stream can be read, unless its watches end at once, again and again.
func (s *Stream) well() {
	if s.opened <= brief {
		s.sink.Failed(nil)
		return
	}

	s.sink.Failed(fmt.Errorf("watch %s: again and again, the watch ends within %s; find out what ends it between the rebalancer and the API server",
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
		case <-s.again:
			s.opened--
			return "", nil
		case <-calmed.C():
			reported := s.opened > brief
			if s.opened = 0; reported {
				s.sink.Failed(nil)
			}
		case s.scope.Selector = <-s.selected:
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
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
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
