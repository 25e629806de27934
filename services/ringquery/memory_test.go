//go:build linux

package ringquery_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/certtest"
)

// The load and the limit: watchers, connections, and memory.
const (
	watchers       = 1000
	perConnection  = 100
	shardsInMemory = 50
	memoryLimit    = 256 << 20
)

// The server is a separate process with TLS, authentication, and authorization.
func TestThousandWatchersFitIntoMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binary")
	}

	s, pid := startProcess(t)
	idle := s.peak(pid)
	ring, namespace := s.makeRing(configMaps())

	names := make([]string, shardsInMemory)
	for i := range names {
		names[i] = fmt.Sprintf("shard-%02d", i)
	}
	s.makeShards(ring, namespace, names...)

	token := s.caller(viewerRole).token
	s.asks(s.connect(bearer(token)), ring, codes.OK)

	before := s.ring(ring).GetRing().GetFingerprint()
	streams := make([]pb.DiagnosticsService_WatchRingClient, 0, watchers)

	for range watchers / perConnection {
		conn := s.connect(bearer(token))
		for range perConnection {
			streams = append(streams, s.follow(conn, ring))
		}

		// The server accepts a limited number of streams from an address that it has not permitted yet.
		s.all(streams[len(streams)-perConnection:], func(res *pb.WatchRingResponse) bool {
			return res.GetRing().GetFingerprint() == before
		})
	}

	begin := time.Now() //nolint:forbidigo // the test tells how long it took
	require.NoError(t, s.shard(ring, namespace, "one-more").Acquire(t.Context()))
	s.all(streams, func(res *pb.WatchRingResponse) bool {
		return res.GetRing().GetFingerprint() != before && res.GetRing().GetAvailableShards() == shardsInMemory+1
	})
	t.Logf("%d watchers have the new set of %d shards after %s; peak of memory: %d MiB idle, %d MiB with them", watchers,
		shardsInMemory+1,
		time.Since(begin).Round(time.Millisecond), idle>>20, s.peak(pid)>>20) //nolint:forbidigo // as above
	require.Less(t, s.peak(pid), uint64(memoryLimit))
}

// follow opens a stream.
func (s *secured) follow(conn *grpc.ClientConn, ring string) pb.DiagnosticsService_WatchRingClient {
	s.t.Helper()

	stream, err := pb.NewDiagnosticsServiceClient(conn).WatchRing(s.t.Context(), &pb.WatchRingRequest{Name: ring})
	require.NoError(s.t, err)

	return stream
}

// all reads every stream until it has received a wanted message.
func (s *secured) all(streams []pb.DiagnosticsService_WatchRingClient, wanted func(*pb.WatchRingResponse) bool) {
	s.t.Helper()

	var readers errgroup.Group

	for _, stream := range streams {
		readers.Go(func() error {
			for {
				if res, err := stream.Recv(); err != nil || wanted(res) {
					return err
				}
			}
		})
	}

	require.NoError(s.t, readers.Wait())
}

// startProcess builds and starts the binary, and waits until it serves.
func startProcess(t *testing.T) (s *secured, pid int) {
	t.Helper()

	dir := t.TempDir()
	binary := filepath.Join(dir, "ringquery")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./cmd/ringquery").CombinedOutput()
	require.NoError(t, err, string(out))

	s = &secured{authority: certtest.NewAuthority(t), server: newServer(t)}
	cmd := exec.CommandContext(t.Context(), binary, append(s.flags(), serving(t, s.authority)...)...)
	cmd.Env = []string{"HOME=" + dir} // and so no GOMEMLIMIT or GOGC
	cmd.Stderr = s.log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = patience
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() }) // the context of the test has ended by then
	s.begin()

	return s, cmd.Process.Pid
}

// peak returns the peak memory of the process, in bytes.
func (s *secured) peak(pid int) uint64 {
	s.t.Helper()

	process, err := procfs.NewProc(pid)
	require.NoError(s.t, err)
	status, err := process.NewStatus()
	require.NoError(s.t, err)

	return status.VmHWM
}
