package ringquery_test

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
)

// TestRestartFailsNoCall stops one of two servers, which has all connections. As with a Service, new connections lead to it until it is not
// ready, and a connection lasts until the server ends it.
func TestRestartFailsNoCall(t *testing.T) {
	r := newReplicas(t)
	r.start(2, "--shutdown-delay", "1s")
	leaving, staying := r.all[0], r.all[1]
	ring, _ := leaving.makeRing(configMaps())
	staying.waitRing(ring)

	var (
		service atomic.Pointer[server]
		dialed  atomic.Int64
	)
	service.Store(leaving)

	conn, err := grpc.NewClient("passthrough:///ringquery", grpc.WithTransportCredentials(r.trust()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			dialed.Add(1)
			return (&net.Dialer{}).DialContext(ctx, "tcp", service.Load().address)
		}))
	require.NoError(t, err)

	defer func() { _ = conn.Close() }()

	var callers sync.WaitGroup

	busy, stop := context.WithCancel(t.Context())

	failed := make(chan error, 8)
	for range cap(failed) {
		callers.Go(func() {
			for busy.Err() == nil {
				if _, err := pb.NewDiagnosticsServiceClient(conn).GetRing(t.Context(), &pb.GetRingRequest{Name: ring}); err != nil {
					failed <- err
					return
				}
			}
		})
	}

	leaving.cancel()
	require.Eventually(t, func() bool {
		code, err := leaving.probe()
		return err == nil && code != http.StatusOK
	}, patience, interval)
	require.NoError(t, r.call(leaving), "it answers those who do not know yet")
	service.Store(staying)
	require.Eventually(t, func() bool { return len(leaving.done) > 0 }, patience, interval)
	require.NoError(t, <-leaving.done)
	leaving.done = nil

	require.Eventually(t, func() bool { return dialed.Load() == 2 }, patience, interval, "the other one answers now")
	stop()
	callers.Wait()
	close(failed)
	require.NoError(t, <-failed, "a call has failed")
}

// waitRing waits until the server knows the ring.
func (s *server) waitRing(name string) {
	s.t.Helper()

	require.Eventually(s.t, func() bool {
		_, err := s.GetRing(s.t.Context(), &pb.GetRingRequest{Name: name})
		return err == nil
	}, patience, interval)
}
