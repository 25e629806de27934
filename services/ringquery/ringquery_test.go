package ringquery_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/output"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// Tests wait at most this long for a condition, and check it this often.
const (
	patience = 30 * time.Second
	interval = 10 * time.Millisecond
)

// server is the command, which runs as in a cluster except for the addresses, and a connection to it.
type server struct {
	pb.DiagnosticsServiceClient

	t       testing.TB
	log     *output.Buffer
	plane   *localplane.Plane
	conn    *grpc.ClientConn
	address string
	health  string
	cancel  context.CancelFunc
	done    chan error
}

func startServer(t testing.TB, args ...string) *server {
	t.Helper()

	s := launch(t, append([]string{"--plaintext", "--authentication", "none"}, args...)...)
	s.use(s.dial(insecure.NewCredentials()))
	s.waitHealth(healthpb.HealthCheckResponse_SERVING)

	return s
}

// launch runs the command with the permissions of the service.
func launch(t testing.TB, args ...string) *server {
	t.Helper()

	s := newServer(t)
	s.done, s.cancel = execute(s.t, s.log, append(s.flags(), args...)...)
	t.Cleanup(func() {
		s.cancel()
		require.Eventually(t, func() bool { return s.done == nil || len(s.done) > 0 }, patience, interval)
	})

	return s
}

// newServer returns a server with its own addresses. It does not run.
func newServer(t testing.TB) *server {
	t.Helper()

	return &server{t: t, log: &output.Buffer{}, plane: localplane.Shared(t), address: localplane.FreeAddress(t),
		health: localplane.FreeAddress(t)}
}

// flags are those that every server needs.
func (s *server) flags() []string {
	return []string{
		"--kubeconfig", s.plane.ServiceKubeconfig(s.t, "ringquery"), "--grpc-bind-address", s.address,
		"--metrics-bind-address", "0", "--health-probe-bind-address", s.health,
	}
}

// dial returns a new connection.
func (s *server) dial(creds credentials.TransportCredentials, options ...grpc.DialOption) *grpc.ClientConn {
	s.t.Helper()

	conn, err := grpc.NewClient(s.address, append(options, grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: interval, MaxDelay: interval}, MinConnectTimeout: patience,
		}))...)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })

	return conn
}

// use selects the connection for calls of the server's methods.
func (s *server) use(conn *grpc.ClientConn) {
	s.conn, s.DiagnosticsServiceClient = conn, pb.NewDiagnosticsServiceClient(conn)
}

// execute runs the command until cancel is called, and sends its error.
func execute(t testing.TB, log io.Writer, args ...string) (done chan error, cancel context.CancelFunc) {
	t.Helper()

	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := ringquery.NewCommand()
	cmd.SetArgs(args)
	cmd.SetErr(io.MultiWriter(log, t.Output()))

	done = make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()

	return done, cancel
}

// waitHealth waits until the server reports this about itself and its service.
func (s *server) waitHealth(want healthpb.HealthCheckResponse_ServingStatus) {
	s.t.Helper()

	for _, service := range []string{"", "clusterring.diagnostics.v1alpha1.DiagnosticsService"} {
		require.Eventually(s.t, func() bool {
			res, err := healthpb.NewHealthClient(s.conn).Check(s.t.Context(), &healthpb.HealthCheckRequest{Service: service})
			return err == nil && res.GetStatus() == want
		}, patience, interval)
	}
}

// makeRing creates a ring and a namespace, and returns both names.
func (s *server) makeRing(spec v1alpha1.ClusterRingSpec) (ring, namespace string) {
	s.t.Helper()

	namespace = s.plane.Namespace(s.t)
	ring = "ring-of-" + namespace
	r := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: ring}, Spec: spec}
	require.NoError(s.t, s.plane.Client.Create(s.t.Context(), r))
	s.t.Cleanup(func() {
		_ = client.IgnoreNotFound(s.plane.Client.Delete(context.WithoutCancel(s.t.Context()), r))
	})
	s.waitRing(ring)

	return ring, namespace
}

// makeShards creates shards that hold their Leases, and waits until the server knows them.
func (s *server) makeShards(ring, namespace string, names ...string) {
	s.t.Helper()

	for _, name := range names {
		require.NoError(s.t, s.shard(ring, namespace, name).Acquire(s.t.Context()))
	}
	require.Eventually(s.t, func() bool {
		return int(s.ring(ring).GetRing().GetAvailableShards()) == len(names)
	}, patience, interval)
}

// shard returns a shard whose Lease lasts longer than the test.
func (s *server) shard(ring, namespace, name string) *leasetest.Shard {
	return &leasetest.Shard{Client: s.plane.Client, Ring: ring, Namespace: namespace, Name: name, Duration: time.Hour}
}

func (s *server) ring(name string) *pb.GetRingResponse {
	s.t.Helper()

	res, err := s.GetRing(s.t.Context(), &pb.GetRingRequest{Name: name})
	require.NoError(s.t, err)

	return res
}

// probe queries the readiness of the server. It fails while the server does not listen.
func (s *server) probe() (code int, err error) {
	s.t.Helper()

	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+s.health+"/readyz", http.NoBody)
	require.NoError(s.t, err)

	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return 0, err
	}

	return res.StatusCode, res.Body.Close()
}

// TestLargestRequestFits verifies that the server accepts the largest request that the .proto files document.
func TestLargestRequestFits(t *testing.T) {
	s := startServer(t)
	ring, _ := s.makeRing(configMaps())
	req := &pb.SimulateRequest{Ring: ring}

	name := func(kind string, i int) string { return fmt.Sprintf("%s-%04d-%s", kind, i, strings.Repeat("x", 63-7)) }
	for i := range 1000 {
		req.Add = append(req.Add, name("a", i))
		req.Remove = append(req.Remove, name("b", i))
		req.Rename = append(req.Rename, &pb.Rename{From: name("c", i), To: name("d", i)})
	}
	require.Len(t, req.GetAdd()[0], 63)

	_, err := s.Simulate(t.Context(), req)
	require.Equal(t, codes.InvalidArgument, status.Code(err), "there are no such shards to remove")
}
