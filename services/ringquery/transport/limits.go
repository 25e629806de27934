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

// deadline limits the duration of unary calls. A client can set a shorter deadline.
func deadline(limit time.Duration) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()

		return handler(ctx, req)
	}
}

// places limits the number of streams on all connections. Streams of the health service, which need no authentication, have their own
// limit, so that they cannot displace other streams.
type places struct {
	limit       int
	all, health *semaphore.Weighted
}

func newPlaces(limit int) *places {
	return &places{limit, semaphore.NewWeighted(int64(limit)), semaphore.NewWeighted(maxOpenStreams)}
}

// intercept rejects a stream if there is no place for it.
func (p *places) intercept(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	of, limit := p.all, p.limit
	if strings.HasPrefix(info.FullMethod, "/grpc.health.") {
		of, limit = p.health, maxOpenStreams
	}

	if !of.TryAcquire(1) {
		return status.Errorf(codes.ResourceExhausted, "the server has %d such streams and accepts no more: end some, or ask another server", limit)
	}
	defer of.Release(1)

	return handler(srv, stream)
}
