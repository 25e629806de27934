package transport

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errStopping is what a client's stream ends with when the server stops.
var errStopping = status.Error(codes.Unavailable, "the server is about to stop: connect to another")

// streams ends all streams when the server stops: one client that watches must not keep it from stopping.
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

// endingStream is a stream whose context may end before the connection does.
type endingStream struct {
	grpc.ServerStream

	ctx context.Context //nolint:containedctx // that of the stream
}

func (s *endingStream) Context() context.Context { return s.ctx }

// RecvMsg waits for the client no longer than the stream lasts.
func (s *endingStream) RecvMsg(m any) error { return s.await(s.ServerStream.RecvMsg, m) }

// SendMsg waits for a client that does not read no longer than the stream lasts.
func (s *endingStream) SendMsg(m any) error { return s.await(s.ServerStream.SendMsg, m) }

// await leaves what does not end to itself: it does when the handler has returned.
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

// handlers counts the calls that are being worked on.
type handlers struct {
	sync.Mutex

	running int
	idle    chan struct{} // closes when there is none; nil until somebody waits
}

func (h *handlers) begin() {
	h.Lock()
	defer h.Unlock()

	h.running++
}

func (h *handlers) end() {
	h.Lock()
	defer h.Unlock()

	if h.running--; h.running == 0 && h.idle != nil {
		close(h.idle)
		h.idle = nil
	}
}

// none returns a channel that closes when no call is being worked on. One goroutine may ask.
func (h *handlers) none() <-chan struct{} {
	h.Lock()
	defer h.Unlock()

	idle := make(chan struct{})
	if h.running == 0 {
		close(idle)
	} else {
		h.idle = idle
	}

	return idle
}

func (h *handlers) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	h.begin()
	defer h.end()

	return handler(ctx, req)
}

func (h *handlers) stream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	h.begin()
	defer h.end()

	return handler(srv, stream)
}
