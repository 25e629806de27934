package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/services/internal/resources"
)

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
func (c *Client) All(ctx context.Context, clk clock.Clock, scope Scope, yield func(Object) error) (resourceVersion string, err error) {
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

	silence := clk.NewTimer(stalled)
	defer silence.Stop()

	for {
		select {
		case <-ctx.Done():
			return "", ctx.Err() //nolint:wrapcheck // the caller's own
		case <-silence.C():
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

			silence.Reset(stalled) // yield may have taken some time
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
