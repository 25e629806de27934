package transport_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// flood opens a stream on which the server sends until its buffer is full. It returns when the first message has
// arrived.
func flood(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, flooding)
	if err != nil {
		return nil, err
	}

	if err := stream.SendMsg(&emptypb.Empty{}); err != nil {
		return nil, err
	}

	if err := stream.CloseSend(); err != nil {
		return nil, err
	}

	return stream, stream.RecvMsg(&wrapperspb.StringValue{})
}

func TestStreamsOfAllConnectionsAreLimited(t *testing.T) {
	f := start(t, nil, "--plaintext", "--grpc-max-total-streams=2")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	_, err := flood(ctx, f.connect())
	require.NoError(t, err)
	_, err = flood(t.Context(), f.connect())
	require.NoError(t, err)

	third := f.connect()
	_, err = flood(t.Context(), third)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.NoError(t, call(t.Context(), third, "hello"), "other calls are not streams")
	watch, err := healthpb.NewHealthClient(third).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = watch.Recv()
	require.NoError(t, err, "health has places of its own")

	cancel()
	require.Eventually(t, func() bool {
		_, err := flood(t.Context(), third)
		return err == nil
	}, patience, interval, "the place of a stream that was cancelled stays taken")
}

// Watches of health and reflection need no permission. They must not displace other streams.
func TestHealthWatchersAreLimited(t *testing.T) {
	f := start(t, nil, "--plaintext", "--grpc-max-total-streams=1")
	conn := f.connect()

	for name, open := range map[string]func(conn *grpc.ClientConn) error{
		"health": func(conn *grpc.ClientConn) error {
			watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
			require.NoError(t, err)
			_, err = watch.Recv()

			return err
		},
		"reflection": func(conn *grpc.ClientConn) error { return describe(reflect(t, conn)) },
	} {
		refused, conns := 0, []*grpc.ClientConn{f.connect(), f.connect()} // a connection has 128 streams at most

		for i := range 140 {
			if err := open(conns[i%2]); err != nil {
				require.Equal(t, codes.ResourceExhausted, status.Code(err))
				refused++
			}
		}
		require.Equal(t, 140-96, refused, "%s: three quarters of 128 are for one address", name)
	}

	_, err := flood(t.Context(), conn)
	require.NoError(t, err)
}

// reflect opens a stream on which the server describes itself.
func reflect(t *testing.T, conn *grpc.ClientConn) reflectionpb.ServerReflection_ServerReflectionInfoClient {
	t.Helper()

	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	require.NoError(t, err)

	return stream
}

// describe makes a request on such a stream.
func describe(stream reflectionpb.ServerReflection_ServerReflectionInfoClient) error {
	_ = stream.Send(&reflectionpb.ServerReflectionRequest{ // fails if the stream has ended; Recv then says why
		MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
	})
	_, err := stream.Recv()

	return err
}

// guardedStream permits the requests of callers with a header.
type guardedStream struct {
	grpc.ServerStream

	waiting chan<- struct{} // receives when the handler waits for a request
}

func (s *guardedStream) RecvMsg(m any) error {
	s.waiting <- struct{}{}

	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}

	if len(metadata.ValueFromIncomingContext(s.Context(), "x-test")) == 0 {
		return status.Error(codes.PermissionDenied, "no header")
	}

	return nil
}

// silent opens a stream without a request.
func silent(ctx context.Context, t *testing.T, conn *grpc.ClientConn) grpc.ClientStream {
	t.Helper()

	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, flooding)
	require.NoError(t, err)

	return stream
}

// Callers without permission must not displace others, neither by requests nor by streams on which they send nothing.
func TestStreamsWithoutPermissionTakeNoPlaces(t *testing.T) {
	waiting := make(chan struct{}, 10)
	guard := func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return handler(srv, &guardedStream{stream, waiting})
	}
	f := start(t, func(f *fixture) { f.Stream = []grpc.StreamServerInterceptor{guard} }, "--plaintext",
		"--grpc-max-total-streams=2")
	conn, permitted := f.connect(), withHeader(t.Context(), "permitted")

	for range 2 {
		silent(t.Context(), t, conn)
		<-waiting

		_, err := flood(t.Context(), conn)
		require.Equal(t, codes.PermissionDenied, status.Code(err))
		<-waiting
	}

	for range 2 {
		_, err := flood(permitted, f.connect())
		require.NoError(t, err)
	}

	_, err := flood(permitted, f.connect())
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
}

func TestCallsOfOneConnectionAreLimited(t *testing.T) {
	f := start(t, nil, "--plaintext")
	busy := f.connect()
	require.NoError(t, call(t.Context(), busy, "hello")) // the client knows the limit from now on

	ctx, end := context.WithCancel(t.Context())
	defer end()

	for range 128 {
		silent(ctx, t, busy)
	}

	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.Equal(t, codes.DeadlineExceeded, status.Code(call(short, busy, "hello")))
	require.NoError(t, call(t.Context(), f.connect(), "hello"), "another connection has calls of its own")

	end()
	require.NoError(t, call(t.Context(), busy, "hello"))
}

func TestCallThatTakesTooLongIsEnded(t *testing.T) {
	f := start(t, nil, "--plaintext", "--grpc-call-timeout=50ms")

	conn, result := f.connect(), make(chan error, 1)
	go func() { result <- call(t.Context(), conn, "wait") }()
	require.Eventually(t, func() bool { return len(result) > 0 }, patience, interval)
	require.Equal(t, codes.DeadlineExceeded, status.Code(<-result))

	stream, err := flood(t.Context(), f.connect())
	require.NoError(t, err)

	for range 100 { // more than fits anywhere on the way
		require.NoError(t, stream.RecvMsg(&wrapperspb.StringValue{}), "a stream has no such deadline")
	}
}

func TestManyHeadersAreRefused(t *testing.T) {
	f := start(t, nil, "--plaintext")
	conn := f.connect()
	require.NoError(t, call(t.Context(), conn, "hello")) // the client knows the limit from now on

	require.Error(t, call(withHeader(t.Context(), strings.Repeat("x", 20<<10)), conn, "hello"))
	require.NoError(t, call(withHeader(t.Context(), strings.Repeat("x", 8<<10)), conn, "hello"))
}

func TestCancelledStreamEndsOnTheServer(t *testing.T) {
	f := start(t, nil, "--plaintext")
	ctx, cancel := context.WithCancel(t.Context())
	_, err := flood(ctx, f.connect())
	require.NoError(t, err)

	cancel()
	require.Equal(t, codes.Canceled, status.Code(<-f.service.flooded))
}

// A client that does not read makes the server wait in the middle of a message, until the drain time is over.
func TestSlowReaderDoesNotHoldUpTheStop(t *testing.T) {
	f := start(t, func(f *fixture) { f.DrainTime = time.Second }, "--plaintext")
	stream, err := flood(t.Context(), f.connect())
	require.NoError(t, err)

	before := int64(-1)
	require.Eventually(t, func() bool {
		now := f.service.sent.Load()
		same := now == before
		before = now

		return same
	}, patience, 20*interval, "there is always room for more")

	f.cancel()
	f.wait()

	for err = nil; err == nil; {
		err = stream.RecvMsg(&wrapperspb.StringValue{})
	}
	require.Equal(t, codes.Unavailable, status.Code(err))
}
