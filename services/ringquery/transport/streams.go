package transport

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"
)

// errStopping ends the streams of clients when the server stops.
var errStopping = status.Error(codes.Unavailable, "the server is about to stop: connect to another server")

// errSilent ends a stream without a request. The code is not DEADLINE_EXCEEDED, which clients take for the end of their own time.
var errSilent = status.Errorf(codes.Unavailable, "the stream had no request for %s: open it again when there is one", firstRequestTime)

// streams ends all streams when the server stops, so that a watching client does not delay the shutdown. It also ends streams without a
// request, because only a request shows whether the caller may have the stream.
type streams struct {
	clock    clock.Clock
	timeout  time.Duration   // of unary calls
	stopping context.Context //nolint:containedctx // a signal to all streams, not the context of a call
	end      context.CancelFunc
}

func (s *streams) init(c clock.Clock, timeout time.Duration) {
	s.clock, s.timeout = c, timeout
	s.stopping, s.end = context.WithCancel(context.Background())
}

// intercept gives a stream a context that ends when the server stops, and a unary call one that ends in time. A client can set a shorter
// deadline.
func (s *streams) intercept(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if isUnary(info) {
		ctx, cancel := context.WithTimeout(stream.Context(), s.timeout)
		defer cancel()

		return handler(srv, &unaryStream{&endingStream{ServerStream: stream, ctx: ctx, clock: s.clock}})
	}

	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()

	stop := context.AfterFunc(s.stopping, cancel)
	defer stop()

	err := handler(srv, &endingStream{ServerStream: stream, ctx: ctx, clock: s.clock})
	if err != nil && s.stopping.Err() != nil && stream.Context().Err() == nil {
		return errStopping
	}

	return err
}

// endingStream is a stream whose context can end before the connection.
type endingStream struct {
	grpc.ServerStream

	ctx   context.Context //nolint:containedctx // that of the stream
	clock clock.Clock
	begun bool // the first request was awaited
}

func (s *endingStream) Context() context.Context { return s.ctx }

// RecvMsg returns when the stream ends, even if the client sends nothing. The first request has to arrive in time.
func (s *endingStream) RecvMsg(m any) error {
	if s.begun {
		return s.await(s.ServerStream.RecvMsg, m, nil)
	}

	s.begun = true

	timer := s.clock.NewTimer(firstRequestTime)
	defer timer.Stop()

	return s.await(s.ServerStream.RecvMsg, m, timer.C())
}

// SendMsg returns when the stream ends, even if the client does not read.
func (s *endingStream) SendMsg(m any) error { return s.await(s.ServerStream.SendMsg, m, nil) }

// unaryStream is the stream of a unary call. An answer may say that there was not enough time.
type unaryStream struct{ *endingStream }

func (s *unaryStream) SendMsg(m any) error {
	return s.ServerStream.SendMsg(m) //nolint:wrapcheck // a status already
}

// await abandons a call that does not end. The call ends when the handler has returned.
func (s *endingStream) await(do func(any) error, m any, late <-chan time.Time) error {
	done := make(chan error, 1)
	go func() { done <- do(m) }()

	select {
	case err := <-done:
		return err
	case <-late:
		return errSilent
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err() //nolint:wrapcheck // a status is what a handler returns
	}
}

// handlers counts the running handlers. A wait for their end holds up no other call: while the server drains, calls still arrive on
// connections whose clients have not read yet that the server stops.
type handlers struct {
	mu      sync.Mutex
	begun   int // how many have begun since the start
	running int
	idle    chan struct{} // closes when none runs any more. Nil: nobody waits
}

// none returns a channel that closes as soon as no handler runs.
func (h *handlers) none() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.idle == nil {
		h.idle = make(chan struct{})
	}

	idle := h.idle
	h.wake()

	return idle
}

// wake ends the waits if no handler runs. The caller holds the lock.
func (h *handlers) wake() {
	if h.running == 0 && h.idle != nil {
		close(h.idle)
		h.idle = nil
	}
}

func (h *handlers) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.begun++
	h.running++
}

func (h *handlers) end() {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.running--
	h.wake()
}

// count returns how many handlers have begun since the start, and how many of them run.
func (h *handlers) count() (begun, running int) {
	h.mu.Lock()
	defer h.mu.Unlock()

	return h.begun, h.running
}

func (h *handlers) stream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	h.begin()
	defer h.end()

	return handler(srv, stream)
}
