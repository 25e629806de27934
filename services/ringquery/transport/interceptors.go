package transport

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"golang.org/x/sync/semaphore"
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
// come recovery, so that a panic ends only one call, the limits, and authorization.
func (s *Server) interceptors() []grpc.ServerOption {
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

	unary := []grpc.UnaryServerInterceptor{
		s.handlers.unary,
		calls().UnaryServerInterceptor(),
		logging.UnaryServerInterceptor(logger, events),
		recovery.UnaryServerInterceptor(recovered),
		deadline(s.Options.CallTimeout),
	}
	stream := []grpc.StreamServerInterceptor{
		s.handlers.stream,
		calls().StreamServerInterceptor(),
		logging.StreamServerInterceptor(logger, events),
		recovery.StreamServerInterceptor(recovered),
		s.streams.intercept,
	}

	// A stream takes a place only after authorization.
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(append(unary, s.Unary...)...),
		grpc.ChainStreamInterceptor(append(append(stream, s.Stream...), newPlaces(s.Options.MaxTotalStreams).intercept)...),
	}
}

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
