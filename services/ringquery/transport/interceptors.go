package transport

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// calls counts and times the calls to all servers of the process.
var calls = sync.OnceValue(func() *grpcprom.ServerMetrics {
	m := grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram(
		grpcprom.WithHistogramBuckets([]float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}),
	))
	metrics.Registry.MustRegister(m)

	return m
})

// interceptors returns the interceptors of every call. Metrics and logs come first, so that they record what the client receives. Then
// come recovery, so that a panic ends only one call, the limits, and authorization. Places come last: a stream takes one only when
// a request of it is permitted. All calls are streams for them; see [streamed].
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
		s.handlers.stream,
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

	_, err := calls().UnaryServerInterceptor()(stream.Context(), nil, &grpc.UnaryServerInfo{Server: srv, FullMethod: info.FullMethod},
		func(context.Context, any) (any, error) { return nil, handler(srv, stream) })

	return err
}
