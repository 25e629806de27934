package leases

import (
	"context"
	"errors"
	"io"
	"net/http"
)

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
