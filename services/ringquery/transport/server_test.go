package transport_test

import (
	"context"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery/transport"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/output"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// Tests wait at most this long for a condition, and check it this often.
const (
	patience = 30 * time.Second
	interval = 10 * time.Millisecond
)

// fixture is a server in its own manager, with a test service.
type fixture struct {
	*transport.Server

	t       *testing.T
	ready   atomic.Pointer[error]
	service *testService
	logs    output.Buffer
	cancel  context.CancelFunc
	done    chan error
	stopped bool
}

// withHeader returns a context whose calls have this header.
func withHeader(ctx context.Context, value string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-test", value)
}

// start starts a server with these flags, modified by change.
func start(t *testing.T, change func(*fixture), args ...string) *fixture {
	t.Helper()

	f := &fixture{
		t: t, done: make(chan error, 1),
		service: &testService{flooded: make(chan error, 10)},
	}

	f.Server = &transport.Server{
		Register:  f.service.register,
		DrainTime: time.Minute,
		Ready: func() error {
			if err := f.ready.Load(); err != nil {
				return *err
			}

			return nil
		},
		Clock: clock.RealClock{},
		Log:   funcr.New(func(_, args string) { _, _ = f.logs.Write([]byte(args)) }, funcr.Options{Verbosity: 1}),
	}
	if change != nil {
		change(f)
	}

	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.Options.AddFlags(flags)
	require.NoError(t, flags.Parse(append([]string{"--grpc-bind-address=" + localplane.FreeAddress(t)}, args...)))
	require.NoError(t, f.Options.Validate())

	mgr := newManager(t)
	require.NoError(t, f.SetupWithManager(mgr))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))

	f.cancel = cancel
	go func() { f.done <- mgr.Start(ctx) }()
	t.Cleanup(func() { f.cancel(); f.wait() })
	require.Eventually(t, func() bool {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", f.Options.BindAddress)
		return err == nil && conn.Close() == nil
	}, patience, interval)
	<-mgr.Elected() // everything has been started

	return f
}

func newManager(t *testing.T) manager.Manager {
	t.Helper()

	plane := localplane.Shared(t)
	forever := -time.Second
	mgr, err := manager.New(plane.Config, manager.Options{
		Scheme:                  plane.Client.Scheme(),
		Logger:                  logr.Discard(),
		Metrics:                 metricsserver.Options{BindAddress: "0"},
		GracefulShutdownTimeout: &forever,
	})
	require.NoError(t, err)

	return mgr
}

// wait waits until the manager has ended.
func (f *fixture) wait() {
	f.t.Helper()

	if f.stopped {
		return
	}

	f.stopped = true

	require.Eventually(f.t, func() bool { return len(f.done) > 0 }, patience, interval, "the server does not stop")
	require.NoError(f.t, <-f.done)
}

// connect returns a connection without TLS.
func (f *fixture) connect() *grpc.ClientConn {
	f.t.Helper()
	return f.connectWith(insecure.NewCredentials())
}

func (f *fixture) connectWith(creds credentials.TransportCredentials, options ...grpc.DialOption) *grpc.ClientConn {
	f.t.Helper()

	conn, err := grpc.NewClient(f.Options.BindAddress, append(options, grpc.WithTransportCredentials(creds))...)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = conn.Close() })

	return conn
}

// eager reconnects immediately.
var eager = grpc.WithConnectParams(grpc.ConnectParams{
	Backoff: backoff.Config{BaseDelay: interval, MaxDelay: interval}, MinConnectTimeout: patience,
})

// testService has a unary method that waits, panics, or returns, depending on the request, and a stream that sends
// until it ends.
type testService struct {
	sent    atomic.Int64
	flooded chan error // how streams have ended
}

const (
	echo     = "/clusterring.test.Test/Echo"
	flooding = "/clusterring.test.Test/Flood"
)

// flood sends until the stream ends.
func (s *testService) flood(_ any, stream grpc.ServerStream) error {
	if err := stream.RecvMsg(&emptypb.Empty{}); err != nil {
		return err
	}

	message := wrapperspb.String(strings.Repeat("x", 16<<10))
	for {
		if err := stream.SendMsg(message); err != nil {
			s.flooded <- err
			return err
		}
		s.sent.Add(1)
	}
}

func (s *testService) register(r grpc.ServiceRegistrar) {
	handle := func(ctx context.Context, text string) (any, error) {
		switch text {
		case "panic":
			panic("of the test")
		case "wait":
			<-ctx.Done()
			return nil, status.FromContextError(ctx.Err()).Err()
		}

		return &emptypb.Empty{}, nil
	}
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: "clusterring.test.Test",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "Echo",
			Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				req := &wrapperspb.StringValue{}
				if err := decode(req); err != nil {
					return nil, err
				}

				return handle(ctx, req.GetValue())
			},
		}},
		Streams: []grpc.StreamDesc{{StreamName: "Flood", ServerStreams: true, Handler: s.flood}},
	}, s)
}

func call(ctx context.Context, conn *grpc.ClientConn, text string) error {
	return conn.Invoke(ctx, echo, wrapperspb.String(text), &emptypb.Empty{})
}

func TestPanicEndsOneCall(t *testing.T) {
	f := start(t, nil, "--plaintext")
	conn := f.connect()

	err := call(t.Context(), conn, "panic")
	require.Equal(t, codes.Internal, status.Code(err))
	require.NotContains(t, err.Error(), "of the test", "the inside of the server is no business of its clients")
	require.Contains(t, f.logs.String(), "panic: of the test")
	require.NoError(t, call(t.Context(), conn, "hello"))
}
