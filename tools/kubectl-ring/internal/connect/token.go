package connect

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"k8s.io/client-go/rest"
)

// bearer sends the bearer token of a kubeconfig's user with each call, if it has one.
//
// Where the token comes from (the file itself, another file, a program) is known to client-go's wrappers of HTTP transports
// alone, as is when to get a new one. So each call lets them wrap a request that goes nowhere, and takes the token from it.
type bearer struct {
	wrapped http.RoundTripper
	// tls is true if the token must not leave without it.
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
	// A name and a password are for the API server alone.
	if value := res.Header.Get("Authorization"); strings.HasPrefix(value, "Bearer ") {
		return map[string]string{"authorization": value}, nil
	}
	return map[string]string{}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b *bearer) RequireTransportSecurity() bool { return b.tls }

// mirror answers a request with the headers that it has, and sends nothing.
type mirror struct{}

// RoundTrip implements http.RoundTripper.
func (mirror) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: req.Header.Clone(), Body: http.NoBody, Request: req}, nil
}
