package transport

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errStopping ends the streams of clients when the server stops.
var errStopping = status.Error(codes.Unavailable, "the server is about to stop: connect to another server")

// streams ends all streams when the server stops, so that a watching client does not delay the shutdown.
type streams struct {
	stopping context.Context //nolint:containedctx // a signal to all streams, not the context of a call
	end      context.CancelFunc
}

func (s *streams) init() { s.stopping, s.end = context.WithCancel(context.Background()) }

// intercept gives a stream a context that ends when the server stops.
func (s *streams) intercept(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()

	stop := context.AfterFunc(s.stopping, cancel)
	defer stop()

	err := handler(srv, &endingStream{stream, ctx})
	if err != nil && s.stopping.Err() != nil && stream.Context().Err() == nil {
		return errStopping
	}

	return err
}

// endingStream is a stream whose context can end before the connection.
type endingStream struct {
	grpc.ServerStream

	ctx context.Context //nolint:containedctx // that of the stream
}

func (s *endingStream) Context() context.Context { return s.ctx }

// RecvMsg returns when the stream ends, even if the client sends nothing.
func (s *endingStream) RecvMsg(m any) error { return s.await(s.ServerStream.RecvMsg, m) }

// SendMsg returns when the stream ends, even if the client does not read.
func (s *endingStream) SendMsg(m any) error { return s.await(s.ServerStream.SendMsg, m) }

// await abandons a call that does not end. The call ends when the handler has returned.
func (s *endingStream) await(do func(any) error, m any) error {
	done := make(chan error, 1)
	go func() { done <- do(m) }()

	select {
	case err := <-done:
		return err
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err() //nolint:wrapcheck // a status is what a handler returns
	}
}

// handlers waits for the running handlers: each holds the lock as a reader.
type handlers struct{ running sync.RWMutex }

// none returns a channel that closes when all handlers that run now have finished. Later ones start after that.
func (h *handlers) none() <-chan struct{} {
	idle := make(chan struct{})

	go func() {
		h.running.Lock()
		defer h.running.Unlock()

		close(idle)
	}()

	return idle
}

func (h *handlers) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	h.running.RLock()
	defer h.running.RUnlock()

	return handler(ctx, req)
}

func (h *handlers) stream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	h.running.RLock()
	defer h.running.RUnlock()

	return handler(srv, stream)
}
