package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/clock"
)

// Sink takes what a [Stream] sees. Its methods are called by one goroutine, in order; a call that blocks holds the stream
// back.
type Sink interface {
	// Begin says that a list begins: what was seen before may be outdated.
	Begin()
	// Present says that the object matches: it was listed, or has changed.
	Present(ctx context.Context, o Object)
	// Gone says that the object no longer matches, or has been deleted.
	Gone(id ID)
	// Listed says that the list which began is complete: all that is said from now on has changed since.
	Listed()
	// Failed says that the stream cannot be read, and why; it will be tried again. A nil error says that it can be read.
	Failed(err error)
}

// Stream follows the objects that match a label selector: it lists them page by page, then watches from there, and lists
// again when the API server no longer has the history. It keeps no object.
type Stream struct {
	Client *Client
	Scope  Scope
	Sink   Sink
	Clock  clock.Clock
}

// errRelist ends a watch whose history the API server no longer has.
var errRelist = errors.New("watch expired")

// backoff spaces out attempts to read a stream: 0.2 s to 30 s, reset by a list that succeeds.
var backoff = wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 9, Cap: 30 * time.Second}

// Run follows the stream until ctx ends.
func (s *Stream) Run(ctx context.Context) {
	next := backoff

	for ctx.Err() == nil {
		listed, err := s.once(ctx)
		if listed {
			next = backoff
		}

		if ctx.Err() != nil {
			return
		}

		if !errors.Is(err, errRelist) {
			s.Sink.Failed(err)
		}

		select {
		case <-ctx.Done():
		case <-s.Clock.After(next.Step()):
		}
	}
}

// once lists and then watches until the watch ends. It says whether the list succeeded.
func (s *Stream) once(ctx context.Context) (listed bool, err error) {
	s.Sink.Begin()

	version, err := s.Client.Pages(ctx, s.Scope, func(page []Object) error {
		for _, o := range page {
			s.Sink.Present(ctx, o)
		}

		return ctx.Err()
	})
	if err != nil {
		return false, err
	}

	s.Sink.Failed(nil)
	s.Sink.Listed()

	w, err := watchtools.NewRetryWatcherWithContext(ctx, version, watcher{s})
	if err != nil {
		return true, fmt.Errorf("watch %s: %w", s.Scope.GVR.GroupResource(), err)
	}
	defer func() {
		w.Stop()
		<-w.Done()
	}()

	for event := range w.ResultChan() {
		if err := s.event(ctx, event); err != nil {
			return true, err
		}
	}

	return true, errRelist
}

func (s *Stream) event(ctx context.Context, event watch.Event) error {
	if event.Type == watch.Error {
		if err := apierrors.FromObject(event.Object); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			return fmt.Errorf("watch %s: %w", s.Scope.GVR.GroupResource(), err)
		}

		return errRelist
	}

	m, ok := event.Object.(*metav1.PartialObjectMetadata)
	if !ok {
		return nil
	}

	//exhaustive:ignore
	switch event.Type {
	case watch.Added, watch.Modified:
		s.Sink.Present(ctx, s.Client.object(s.Scope.GVR, m))
	case watch.Deleted:
		s.Sink.Gone(ID{GVR: s.Scope.GVR, Namespace: m.Namespace, Name: m.Name})
	}

	return nil
}

// watcher lets the retrying watcher of client-go open watches of the stream's scope.
type watcher struct{ s *Stream }

func (w watcher) WatchWithContext(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	opened, err := w.s.Client.watch(ctx, w.s.Scope, opts)
	if err != nil && ctx.Err() != nil {
		return nil, io.EOF // the stream ends; client-go would log another error
	}

	return opened, err
}
