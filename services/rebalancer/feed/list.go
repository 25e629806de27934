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

// stalled is how long a streaming list may deliver nothing. An API server that does not know streaming lists delivers only
// changes, and never ends the list.
const stalled = 30 * time.Second

// errNoStream reports that the API server does not serve a list as a stream, or ended the stream early.
var errNoStream = errors.New("the API server does not serve streaming lists")

// All passes the objects that match a scope to yield, one after another, and returns the resource version from which a watch
// can continue. It ends with the error of yield or of the API server. An object that changes meanwhile may be passed more than
// once.
//
// The API server sends the objects as a stream. Its cost per object does not depend on their number (https://kep.k8s.io/3157).
// All uses pages if the API server does not serve streams, or ends the stream early. It does the latter if more is written
// meanwhile than it keeps for one watcher; the next stream would also end early.
func (c *Client) All(ctx context.Context, clk clock.Clock, scope Scope, yield func(Object) error) (resourceVersion string, err error) {
	version, err := c.streamed(ctx, clk, scope, yield)
	if !errors.Is(err, errNoStream) {
		return version, err
	}

	return c.Few(ctx, scope, yield)
}

// Few does the same as [Client.All], but always in pages. Up to about ten thousand objects, pages cost the API server no more
// than a stream, and concurrent writes to the objects do not end them early.
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
		return "", errNoStream // an otherwise invalid request also fails in pages
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

			silence.Reset(stalled) // yield may have taken some time
		}
	}
}

// listed processes one event of a streaming list. The event that ends the list returns its version.
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
