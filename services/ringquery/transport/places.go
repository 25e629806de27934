package transport

import (
	"context"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/clusterring/clusterring/services/internal/quota"
)

// decided is the key of a function in the context of a call, which reports that the call is permitted.
type decided struct{}

// newDoor limits the number of calls of which it is not known whether they are permitted. The result is called with the
// headers of each call. It must not wait, because it holds up the connection.
func newDoor() tap.ServerInHandle {
	undecided := quota.New(maxUndecided, maxUndecidedEach)

	return func(ctx context.Context, _ *tap.Info) (context.Context, error) {
		give, ok := undecided.Take(client(ctx), 1)
		if !ok {
			return nil, status.Error(codes.ResourceExhausted, "the server has too many new calls: try again later, or ask "+
				"another server")
		}

		give = sync.OnceFunc(give)
		context.AfterFunc(ctx, give)

		return context.WithValue(ctx, decided{}, give), nil
	}
}

// client returns the address of the client of a call.
func client(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}

	return ""
}

// places limits the number of unary calls and of streams on all connections, and from each address. Streams of health,
// which needs no authentication, and of reflection, which needs no permission, have limits of their own, so that they
// cannot displace other streams.
type places struct {
	requests, all, health, reflection *quota.Quota
}

// newPool returns a number of places. A quarter of them is for other addresses than that which has most.
func newPool(limit int) *quota.Quota { return quota.New(int64(limit), int64(limit-limit/4)) }

func newPlaces(limit int) *places {
	return &places{
		quota.New(maxRequests, maxRequestsEach), newPool(limit), newPool(maxOpenStreams), newPool(maxOpenStreams),
	}
}

// intercept lets a unary call wait for its turn, and rejects a stream if there is no place for it. A stream that
// requires permission takes its place when its first request is permitted. Otherwise, callers without permission could
// take all places by streams on which they send nothing.
func (p *places) intercept(
	srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	if isUnary(info) {
		leave, err := p.requests.Wait(stream.Context(), client(stream.Context()))
		if err != nil {
			return status.FromContextError(err).Err() //nolint:wrapcheck // a status is what a handler returns
		}
		defer leave()

		decide(stream.Context())

		return handler(srv, stream)
	}

	placed := &placedStream{ServerStream: stream, pool: p.all}
	defer func() {
		if placed.leave != nil {
			placed.leave()
		}
	}()

	switch {
	case strings.HasPrefix(info.FullMethod, "/grpc.health."):
		placed.pool = p.health
	case strings.HasPrefix(info.FullMethod, "/grpc.reflection."):
		placed.pool = p.reflection
	default:
		return handler(srv, placed)
	}

	if err := placed.enter(); err != nil {
		return err
	}

	return handler(srv, placed)
}

// decide makes room for another call at the door.
func decide(ctx context.Context) {
	if give, ok := ctx.Value(decided{}).(func()); ok {
		give()
	}
}

// placedStream takes a place with its first request, unless it has one already.
type placedStream struct {
	grpc.ServerStream

	pool  *quota.Quota
	leave func()
}

// RecvMsg receives a request and fails if there is no place for the stream.
func (s *placedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err //nolint:wrapcheck // the end of the stream, or a status already
	}

	return s.enter()
}

func (s *placedStream) enter() error {
	if s.leave != nil {
		return nil
	}

	leave, ok := s.pool.Take(client(s.Context()), 1)
	if !ok {
		return status.Error(codes.ResourceExhausted, "the server has too many such streams, in all or from your address, "+
			"and accepts no more: end some, or ask another server")
	}

	s.leave = leave
	decide(s.Context())

	return nil
}
