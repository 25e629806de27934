package metadata

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/clusterring/clusterring/services/internal/resources"
)

// The ways in which a request fails. An error wraps exactly one of these and the error of the API server, or the error of the context
// if the context has ended.
var (
	// ErrForbidden: the service may not read this.
	ErrForbidden = errors.New("not allowed")
	// ErrNotFound: there is no such object.
	ErrNotFound = errors.New("no such object")
	// ErrNotServed: the API server does not serve the resource in this version.
	ErrNotServed = errors.New("no such resource")
	// ErrExpired: the list cannot be continued, because it began too long ago.
	ErrExpired = errors.New("the list has expired")
	// ErrInvalid: the API server rejects the request: the selector or the continue token is malformed.
	ErrInvalid = errors.New("invalid request")
	// ErrUnavailable: the API server cannot be reached, or cannot answer now.
	ErrUnavailable = errors.New("the API server does not answer")
)

// classify wraps the error of a request with one of the errors above.
func classify(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}

	return fmt.Errorf("%s: %w: %w", what, way(err), err)
}

func way(err error) error {
	switch {
	// Without valid credentials, the service may not read anything either.
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return ErrForbidden
	case resources.IsGone(err):
		return ErrNotFound
	case apierrors.IsNotFound(err):
		return ErrNotServed
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return ErrExpired
	case apierrors.IsBadRequest(err), apierrors.IsInvalid(err):
		return ErrInvalid
	case apierrors.IsMethodNotSupported(err), apierrors.IsNotAcceptable(err):
		return ErrNotServed
	default:
		return ErrUnavailable
	}
}
