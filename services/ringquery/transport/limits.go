package transport

import (
	"context"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// deadline gives every call that is no stream a time to end. A client may have given it less.
func deadline(limit time.Duration) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()

		return handler(ctx, req)
	}
}

// places are what streams take while they last, on all connections together. Those for which nobody has to say who they are have
// their own, so that they cannot take those of others.
type places struct {
	limit       int
	all, health *semaphore.Weighted
}

func newPlaces(limit int) *places {
	return &places{limit, semaphore.NewWeighted(int64(limit)), semaphore.NewWeighted(maxOpenStreams)}
}

// intercept gives a stream a place, or refuses it.
func (p *places) intercept(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	of, limit := p.all, p.limit
	if strings.HasPrefix(info.FullMethod, "/grpc.health.") {
		of, limit = p.health, maxOpenStreams
	}

	if !of.TryAcquire(1) {
		return status.Errorf(codes.ResourceExhausted, "the server has %d such streams, and takes no more: end some, or ask another server", limit)
	}
	defer of.Release(1)

	return handler(srv, stream)
}
