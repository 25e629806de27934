package objects

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

// stalled is how long a streaming list may bring nothing. An API server that does not know such lists brings what changes, and
// never says that the list is over.
const stalled = 30 * time.Second

// errNoStream reports that the API server does not serve a list as a stream, or not to its end.
var errNoStream = errors.New("the API server does not serve streaming lists")

// All hands the objects that match a scope to yield, one after another, and returns the resource version from which a watch can
// go on. It ends with yield's error, or the API server's. An object that changes meanwhile may come more than once.
//
// The API server sends them as a stream, which costs it the same for each object however many there are
// (https://kep.k8s.io/3157). Where it does not serve that, they come in pages; so they do where it ends the stream early, as it does
// when more is written meanwhile than it keeps for one watcher: then the next stream would end early, too.
func (c *Client) All(ctx context.Context, clk clock.Clock, scope Scope, yield func(Object) error) (resourceVersion string, err error) {
	version, err := c.streamed(ctx, clk, scope, yield)
	if !errors.Is(err, errNoStream) {
		return version, err
	}

	return c.Few(ctx, scope, yield)
}

// Few does the same as [Client.All] in pages alone. Up to some ten thousand objects these cost the API server no more than a stream, and no stream
// ends early because the objects are written to meanwhile.
func (c *Client) Few(ctx context.Context, scope Scope, yield func(Object) error) (resourceVersion string, err error) {
	return c.Pages(ctx, scope, func(page []Object) error {
		for _, o := range page {
			if err := yield(o); err != nil {
				return err
			}
		}

		return ctx.Err()
	})
}

func (c *Client) streamed(ctx context.Context, clk clock.Clock, scope Scope, yield func(Object) error) (string, error) {
	opts := scope.options()
	opts.AllowWatchBookmarks = true
	opts.SendInitialEvents = new(true)
	opts.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan

	w, err := c.server.Watch(ctx, scope.GVR, scope.Namespace, opts)

	switch {
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsMethodNotSupported(err):
		return "", errNoStream // a request that is wrong otherwise is refused in pages, too
	case err != nil:
		return "", fmt.Errorf("list %s: %w", scope.GVR.GroupResource(), err)
	}
	defer w.Stop()

	silence := clk.NewTimer(stalled)
	defer silence.Stop()

	for {
		select {
		case <-ctx.Done():
			return "", ctx.Err() //nolint:wrapcheck // the caller's own
		case <-silence.C():
			return "", errNoStream
		case event, open := <-w.ResultChan():
			if !open {
				return "", errNoStream
			}

			if version, err := c.listed(scope, event, yield); version != "" || err != nil {
				return version, err
			}

			silence.Reset(stalled) // who takes the objects may have taken some time
		}
	}
}

// listed takes one event of a streaming list. It returns the version of the list with the event that ends it.
func (c *Client) listed(scope Scope, event watch.Event, yield func(Object) error) (version string, err error) {
	if event.Type == watch.Error {
		return "", fmt.Errorf("list %s: %w", scope.GVR.GroupResource(), apierrors.FromObject(event.Object))
	}

	m, ok := event.Object.(*metav1.PartialObjectMetadata)
	if !ok {
		return "", nil
	}

	//exhaustive:ignore
	switch event.Type {
	case watch.Added, watch.Modified:
		return "", yield(c.Object(scope.GVR, m))
	case watch.Bookmark:
		if m.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
			return m.ResourceVersion, nil
		}
	}

	return "", nil
}
