package transport

import (
	"strings"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// places limits the number of streams on all connections. Streams of health, which needs no authentication, and of reflection, which
// needs no permission, have limits of their own, so that they cannot displace other streams.
type places struct{ all, health, reflection *pool }

// pool has a limited number of places.
type pool struct {
	*semaphore.Weighted

	limit int
}

func newPool(limit int) *pool { return &pool{semaphore.NewWeighted(int64(limit)), limit} }

func newPlaces(limit int) *places {
	return &places{newPool(limit), newPool(maxOpenStreams), newPool(maxOpenStreams)}
}

// intercept rejects a stream if there is no place for it. A stream that requires permission takes its place when its first request is
// permitted. Otherwise, callers without permission could take all places by streams on which they send nothing.
func (p *places) intercept(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	placed := &placedStream{ServerStream: stream, pool: p.all}
	defer placed.leave()

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

// placedStream takes a place with its first request, unless it has one already.
type placedStream struct {
	grpc.ServerStream

	pool *pool
	has  bool
}

// RecvMsg receives a request and fails if there is no place for the stream.
func (s *placedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err //nolint:wrapcheck // the end of the stream, or a status already
	}

	return s.enter()
}

func (s *placedStream) enter() error {
	if s.has {
		return nil
	}

	if !s.pool.TryAcquire(1) {
		return status.Errorf(codes.ResourceExhausted, "the server has %d such streams and accepts no more: end some, or ask another server", s.pool.limit)
	}

	s.has = true

	return nil
}

func (s *placedStream) leave() {
	if s.has {
		s.pool.Release(1)
	}
}
