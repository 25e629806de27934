package transport

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	middleware "github.com/grpc-ecosystem/go-grpc-middleware/v2"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// calls counts and times the calls to all servers of the process.
var calls = sync.OnceValue(func() *grpcprom.ServerMetrics {
	m := grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram(
		grpcprom.WithHistogramBuckets([]float64{
			0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30,
		}),
	))
	metrics.Registry.MustRegister(m)

	return m
})

// interceptors returns the interceptors of every call. Metrics and logs come first, so that they record what the client
// receives. Then come recovery, so that a panic ends only one call, the limits, and authorization. Places come last: a
// stream takes one only when a request of it is permitted. All calls are streams for them; see [Streamed].
func (s *Server) interceptors() []grpc.StreamServerInterceptor {
	log := s.Log
	logger := logging.LoggerFunc(func(_ context.Context, _ logging.Level, msg string, fields ...any) {
		log.V(1).Info(msg, fields...)
	})
	events := logging.WithLogOnEvents(logging.FinishCall)
	recovered := recovery.WithRecoveryHandlerContext(func(ctx context.Context, p any) error {
		method, _ := grpc.Method(ctx)
		log.Error(fmt.Errorf("panic: %v", p), "Handler panicked", "method", method, "stack", string(debug.Stack()))

		return status.Error(codes.Internal, "the server failed to answer; see its log")
	})

	all := []grpc.StreamServerInterceptor{
		count,
		logging.StreamServerInterceptor(logger, events),
		recovery.StreamServerInterceptor(recovered),
		s.streams.intercept,
	}

	return append(append(all, s.Stream...), newPlaces(s.Options.MaxTotalStreams).intercept)
}

// count counts and times a call.
func count(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if !isUnary(info) {
		return calls().StreamServerInterceptor()(srv, stream, info, handler)
	}

	_, err := calls().UnaryServerInterceptor()(stream.Context(), nil,
		&grpc.UnaryServerInfo{Server: srv, FullMethod: info.FullMethod},
		func(context.Context, any) (any, error) { return nil, handler(srv, stream) })

	return err
}

// Streamed registers services so that the interceptors of streams run for unary methods, too. gRPC reads and decodes
// the request of a unary method before its interceptors run, and that of a stream only when an interceptor or the
// handler asks for it. Clients see no difference.
type Streamed struct {
	grpc.ServiceRegistrar

	Interceptors []grpc.StreamServerInterceptor
}

// RegisterService implements grpc.ServiceRegistrar.
func (s Streamed) RegisterService(desc *grpc.ServiceDesc, impl any) {
	all := *desc
	all.Methods, all.Streams = nil, slices.Clone(desc.Streams)

	for _, method := range desc.Methods {
		all.Streams = append(all.Streams, grpc.StreamDesc{
			StreamName: method.MethodName, Handler: s.handler(method, &grpc.StreamServerInfo{
				FullMethod: "/" + desc.ServiceName + "/" + method.MethodName,
			}),
		})
	}

	s.ServiceRegistrar.RegisterService(&all, impl)
}

// handler returns the handler of a unary method, with the interceptors. gRPC calls it directly.
func (s Streamed) handler(method grpc.MethodDesc, info *grpc.StreamServerInfo) grpc.StreamHandler {
	handler := func(srv any, stream grpc.ServerStream) error {
		response, err := method.Handler(srv, stream.Context(), stream.RecvMsg, nil)
		if err != nil {
			return err //nolint:wrapcheck // a status already
		}

		return stream.SendMsg(response)
	}

	for _, intercept := range slices.Backward(s.Interceptors) {
		next := handler
		handler = func(srv any, stream grpc.ServerStream) error { return intercept(srv, stream, info, next) }
	}

	return handler
}

// isUnary reports whether a method has one request and one response.
func isUnary(info *grpc.StreamServerInfo) bool { return !info.IsClientStream && !info.IsServerStream }

// errStopping ends the streams of clients when the server stops.
var errStopping = status.Error(codes.Unavailable, "the server is about to stop: connect to another server")

// streams ends all streams when the server stops, so that a watching client does not delay the shutdown.
type streams struct {
	timeout  time.Duration   // of unary calls
	stopping context.Context //nolint:containedctx // a signal to all streams, not the context of a call
	end      context.CancelFunc
}

// intercept gives a stream a context that ends when the server stops, and a unary call one that ends in time. A client
// can set a shorter deadline.
func (s *streams) intercept(
	srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	if isUnary(info) {
		ctx, cancel := context.WithTimeout(stream.Context(), s.timeout)
		defer cancel()

		return handler(srv, ending(ctx, stream))
	}

	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()

	stop := context.AfterFunc(s.stopping, cancel)
	defer stop()

	err := handler(srv, ending(ctx, stream))
	if err != nil && s.stopping.Err() != nil && stream.Context().Err() == nil {
		return errStopping
	}

	return err
}

// endingStream is a stream whose context can end before the connection.
type endingStream struct{ middleware.WrappedServerStream }

func ending(ctx context.Context, stream grpc.ServerStream) grpc.ServerStream {
	return &endingStream{middleware.WrappedServerStream{ServerStream: stream, WrappedContext: ctx}}
}

// RecvMsg returns when the stream ends, even if the client sends nothing. It then abandons the reading, which ends when
// the handler has returned.
func (s *endingStream) RecvMsg(m any) error {
	done := make(chan error, 1)
	go func() { done <- s.ServerStream.RecvMsg(m) }()

	select {
	case err := <-done:
		return err
	case <-s.WrappedContext.Done():
		return status.FromContextError(s.WrappedContext.Err()).Err() //nolint:wrapcheck // a status is what a handler returns
	}
}

// codec does not decode messages with many fields. In a request, an empty entry of a list has 2 bytes, and in memory
// 100.
type codec struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	message := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer message.Free()

	rest := message.ReadOnlyData()
	for fields := 1; len(rest) > 0; fields++ {
		_, _, n := protowire.ConsumeField(rest)
		if n < 0 {
			break // the codec knows what is wrong
		}

		if fields > maxFields {
			return fmt.Errorf("the message has more than %d fields", maxFields)
		}

		rest = rest[n:]
	}

	return c.CodecV2.Unmarshal(mem.BufferSlice{message}, v) //nolint:wrapcheck // gRPC wraps it
}
