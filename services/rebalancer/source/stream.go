// Package source finds objects: it follows what matches a selector, and goes over all that is labelled.
//
// It reads the API server, hands what it sees to a [Sink], and says how it fares: an error is told when it comes, not retried in
// silence, and a watch that brings nothing for longer than the API server leaves one alone is not believed. It keeps no object
// and decides nothing.
package source

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

const (
	// silence is how long a watch may bring nothing until a list shows what there is. API servers send a bookmark every minute to
	// who asks for them; one that is late by half as long again may be busy. Where an API server sends none, this is the price: a
	// list now and then.
	silence = 150 * time.Second
	// calm is how long a watch must have lasted for the next to be opened without a pause.
	calm = 10 * time.Second
)

// Sink takes what a [Stream] sees. Its methods are called by one goroutine, in order; a call that blocks holds the stream
// back.
type Sink interface {
	// Begin says that a list begins, at once or after a pause: what was seen before may be outdated. When it begins after a pause, it is said
	// again.
	Begin()
	// Present says that the object matches: it was listed, or has changed.
	Present(ctx context.Context, o objects.Object)
	// Gone says that the object no longer matches, or has been deleted, by the given resource version.
	Gone(id objects.ID, resourceVersion string)
	// Listed says that the list which began is complete: all that is said from now on has changed since.
	Listed()
	// Failed says that the stream cannot be read, and why; it will be tried again. A nil error says that it can be read.
	Failed(err error)
}

// Stream follows the objects that match a label selector: it lists them, then watches from there, and lists again when the API
// server no longer has the history. Create it with [NewStream].
//
// Invariants:
//
//  1. What matches when a list begins, and whatever comes to match after, is said by Present, if the stream can be read.
//  2. While it cannot be read, Failed has said so last. While a list is missing, Begin has.
//  3. A watch that brings nothing, not even a bookmark, is not believed for longer than the silence.
//  4. Another selector takes effect without a list: whatever comes to match it after what was seen with the old one is said. Who
//     matches it already, and did not match the old one, is not; whoever selects knows, and lists these.
type Stream struct {
	client *objects.Client
	sink   Sink
	clock  clock.Clock
	scope  objects.Scope
	// selected holds the selector that is wanted now, until Run takes it.
	selected chan string
	// again asks for another list.
	again chan struct{}
}

// NewStream returns a stream of what is in a scope. Run it once.
func NewStream(c *objects.Client, scope objects.Scope, sink Sink, clk clock.Clock) *Stream {
	return &Stream{client: c, sink: sink, clock: clk, scope: scope, selected: make(chan string, 1), again: make(chan struct{}, 1)}
}

// Select gives the stream another label selector. It returns at once; one goroutine may call it.
func (s *Stream) Select(selector string) {
	select {
	case <-s.selected: // nobody has taken the one before
	default:
	}

	s.selected <- selector
}

// Relist has the stream list again. It returns at once, and may be called by any goroutine.
func (s *Stream) Relist() {
	select {
	case s.again <- struct{}{}:
	default:
	}
}

// asked reports whether another list has been asked for that has not begun.
func (s *Stream) asked() bool {
	select {
	case <-s.again:
		return true
	default:
		return false
	}
}

// errRelist ends a watch whose history the API server no longer has, or that is not that of the same storage.
var errRelist = errors.New("the history is gone")

// Run follows the stream until ctx ends.
func (s *Stream) Run(ctx context.Context) {
	next := Attempts(s.scope.GVR.String() + " " + s.scope.Selector)
	version := ""

	for ctx.Err() == nil {
		began := s.clock.Now()
		if s.asked() { // however long it takes until the API server lets anybody watch
			version = ""
		}

		listing := version == ""

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
		case ctx.Err() != nil || err == nil && (listing || lasted):
			continue
		case errors.Is(err, errRelist):
			version = ""
			s.sink.Begin() // nothing is told during the pause
		case err != nil:
			s.sink.Failed(err)
		}

		select {
		case <-ctx.Done():
		case <-s.clock.After(next.Next()):
		}
	}
}

// list tells of all that matches, and returns from where to watch.
func (s *Stream) list(ctx context.Context) (version string, err error) {
	s.take()
	s.sink.Begin()

	version, err = s.client.All(ctx, s.clock, s.scope, func(o objects.Object) error {
		s.sink.Present(ctx, o)
		return ctx.Err()
	})
	if err != nil {
		return "", err
	}

	s.sink.Listed()
	s.sink.Failed(nil)

	return version, nil
}

// take takes the selector that is wanted now.
func (s *Stream) take() {
	select {
	case s.scope.Selector = <-s.selected:
	default:
	}
}

// follow watches until the watch ends, and returns from where to go on.
func (s *Stream) follow(ctx context.Context, version string) (string, error) {
	s.take()

	w, err := s.open(ctx, version)
	if err != nil {
		return version, err
	}
	defer func() { w.Stop() }()

	s.sink.Failed(nil)

	silent := s.clock.NewTimer(silence)
	defer silent.Stop()

	for {
		select {
		case <-ctx.Done():
			return version, ctx.Err() //nolint:wrapcheck // the caller's own
		case <-silent.C():
			return "", nil // after a restore of its storage, an API server tells nothing of what comes below the version
		case <-s.again:
			return "", nil
		case s.scope.Selector = <-s.selected:
			// The old watch stays until the new one is there.
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

			silent.Reset(silence) // the sink may have taken its time
		}
	}
}

func (s *Stream) open(ctx context.Context, version string) (watch.Interface, error) {
	w, err := s.client.Watch(ctx, s.scope, version)
	if history(err) {
		return nil, errRelist
	}

	return w, err
}

// history reports whether an API server cannot go on from a resource version: it is too old, or newer than all that there is, as
// after a restore of its storage.
func history(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// event hands one event on, and returns from where to go on after it.
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

	if objects.Older(m.ResourceVersion, version) {
		return version, errRelist // versions do not go backwards, but for a restore of the storage
	}

	//exhaustive:ignore
	switch event.Type {
	case watch.Added, watch.Modified:
		s.sink.Present(ctx, s.client.Object(s.scope.GVR, m))
	case watch.Deleted:
		s.sink.Gone(objects.ID{GVR: s.scope.GVR, Namespace: m.Namespace, Name: m.Name}, m.ResourceVersion)
	}

	return m.ResourceVersion, nil
}
