// Package leases reads the Leases of shards from the API server: all of them, in a bounded amount of memory.
//
// Writers of Leases choose their size, up to the API server's limit. Therefore, [Read] and [Source] list Leases in
// pages, the bytes of a page are bounded by [Bound], and of a page only what [lease.Slim] keeps remains. A page that is
// too large is read again in parts. A watch, also one that begins with the current state, decodes one Lease at a time
// and needs no such care.
//
// [Watch] and [Follow] keep a [membership.Index] up to date with the Leases that carry a ring's label, and make /readyz
// wait until the index has seen all that there were at first. They send requests only to read.
package leases

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/lease"
)

const (
	// mostPerPage is how many Leases are read at a time: those of a large ring, about a MiB if they are as shards write
	// them.
	mostPerPage = 1000
	// divisor is how much smaller the page is after one that is too large. Each page that is not doubles the next one.
	divisor = 8
)

// Read returns the Leases that the options select, as they were at one moment. They are slim. The options must not set
// a limit. The config of the reader must be wrapped by [Bound].
func Read(ctx context.Context, reader client.Reader, opts ...client.ListOption) ([]coordinationv1.Lease, error) {
	list, err := inPages(metav1.ListOptions{}, func(page metav1.ListOptions) (*coordinationv1.LeaseList, error) {
		list := &coordinationv1.LeaseList{}
		all := slices.Concat(opts, []client.ListOption{client.Limit(page.Limit), client.Continue(page.Continue)})

		return list, reader.List(Bounded(ctx), list, all...)
	})
	if err != nil {
		return nil, err
	}

	return list.Items, nil
}

// Source returns a source for a reflector of Leases that lists like [Read]. Reflectors list only where the API server
// cannot begin a watch with the current state.
func Source(of toolscache.ListerWatcher) toolscache.ListerWatcher {
	from := toolscache.ToListerWatcherWithContext(of)

	return &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			// An API server may ignore the limit of a list for which its cache is new enough.
			opts.ResourceVersion, opts.ResourceVersionMatch = "", ""

			return inPages(opts, func(page metav1.ListOptions) (*coordinationv1.LeaseList, error) {
				list, err := from.ListWithContext(Bounded(ctx), page)
				if err != nil {
					return nil, err //nolint:wrapcheck // the reflector looks at it
				}

				leases, ok := list.(*coordinationv1.LeaseList)
				if !ok {
					return nil, fmt.Errorf("list Leases: got %T", list)
				}

				return leases, nil
			})
		},
		WatchFuncWithContext: from.WatchWithContext,
	}
}

// inPages reads all pages and returns one list of slim Leases.
func inPages(opts metav1.ListOptions, read func(metav1.ListOptions) (*coordinationv1.LeaseList,
	error)) (*coordinationv1.LeaseList, error) {
	all := &coordinationv1.LeaseList{}

	for opts.Limit = mostPerPage; ; {
		page, err := read(opts)

		switch {
		case errors.Is(err, ErrTooLarge) && opts.Limit > 1:
			opts.Limit = Smaller(opts.Limit)
			continue
		case err != nil:
			return nil, err
		}

		for i := range page.Items {
			all.Items = append(all.Items, *lease.Slim(&page.Items[i]))
		}

		all.ResourceVersion = page.ResourceVersion
		opts.Limit = min(2*opts.Limit, mostPerPage)

		if opts.Continue = page.Continue; opts.Continue == "" {
			return all, nil
		}
	}
}

// Cached returns the Leases of the ring with the given name from a cache. The caller must not change them. It returns
// errors of the reader.
func Cached(ctx context.Context, cache client.Reader, ring string) ([]*coordinationv1.Lease, error) {
	list := &coordinationv1.LeaseList{}

	err := cache.List(ctx, list, client.MatchingLabels{contract.LabelClusterRing: ring}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list the Leases of ring %s: %w", ring, err)
	}

	leases := make([]*coordinationv1.Lease, 0, len(list.Items))
	for i := range list.Items {
		leases = append(leases, &list.Items[i])
	}

	return leases, nil
}

// mostBytes limits the bytes of a page. While it is decoded, a page needs up to five times as much memory. An object of
// the API server has at most 1.5 MiB.
const mostBytes = 8 << 20

// ErrTooLarge is the error of a page that has more bytes. Read it again with a limit that is [Smaller].
var ErrTooLarge = errors.New("the page has more than 8 MiB")

// key marks the context of a request for a page.
type key struct{}

// Bounded returns a context for a request that fails with [ErrTooLarge] if its response has more than 8 MiB. The config
// of the client must be wrapped by [Bound].
func Bounded(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, true) }

// Smaller returns the limit of the next attempt to read a page that was too large with a limit greater than 1.
func Smaller(limit int64) int64 { return max(limit/divisor, 1) }

// Bound wraps the transport of a client, so that pages of [Bounded] requests that are too large are not read to their
// end. It does not change other requests.
func Bound(next http.RoundTripper) http.RoundTripper { return transport{next} }

type transport struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(r)
	if err == nil && r.Context().Value(key{}) != nil {
		response.Body = &body{response.Body, mostBytes}
	}

	return response, err //nolint:wrapcheck // the client looks at it
}

// WrappedRoundTripper lets client-go find the transport inside.
func (t transport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

// body ends with an error after its number of bytes.
type body struct {
	io.ReadCloser

	left int
}

// Read implements io.Reader.
func (b *body) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if b.left -= n; b.left < 0 {
		return 0, ErrTooLarge
	}

	return n, err //nolint:wrapcheck // io.EOF
}
