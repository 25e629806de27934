package connect

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"k8s.io/client-go/rest"
)

// bearer sends the bearer token of a kubeconfig user with each call, if the user has one.
//
// The token can come from the kubeconfig, another file, or a program. Only the HTTP transport wrappers of client-go know how to get the
// token and when to renew it. For each call, they wrap a request that is never sent, and bearer reads the token from that request.
type bearer struct {
	wrapped http.RoundTripper
	// tls is true if the token requires TLS.
	tls bool
}

func newBearer(config *rest.Config, tls bool) (*bearer, error) {
	wrapped, err := rest.HTTPWrappersForConfig(config, mirror{})
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig's credentials: %w", err)
	}

	return &bearer{wrapped, tls}, nil
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b *bearer) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://token.invalid/", http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask for a token: %w", err)
	}

	res, err := b.wrapped.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("get a token for the kubeconfig's user: %w", err)
	}

	_ = res.Body.Close() // it is empty
	// A user name and a password are only for the API server.
	if value := res.Header.Get("Authorization"); strings.HasPrefix(value, "Bearer ") {
		return map[string]string{"authorization": value}, nil
	}

	return map[string]string{}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b *bearer) RequireTransportSecurity() bool { return b.tls }

// mirror answers a request with the headers of the request, and sends nothing.
type mirror struct{}

// RoundTrip implements http.RoundTripper.
func (mirror) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: req.Header.Clone(), Body: http.NoBody, Request: req}, nil
}
