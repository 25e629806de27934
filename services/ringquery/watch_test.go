package ringquery_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
)

// watcher reads a stream of one ring and checks the invariants of every message.
type watcher struct {
	pb.DiagnosticsService_WatchRingClient

	t      *testing.T
	last   *pb.WatchRingResponse
	cancel context.CancelFunc
}

func watch(t *testing.T, client pb.DiagnosticsServiceClient, ring string) *watcher {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), 4*patience) // TestSlowReader makes many changes meanwhile
	t.Cleanup(cancel)

	stream, err := client.WatchRing(ctx, &pb.WatchRingRequest{Name: ring})
	require.NoError(t, err)

	return &watcher{DiagnosticsService_WatchRingClient: stream, t: t, cancel: cancel}
}

// next returns the next message.
func (w *watcher) next() *pb.WatchRingResponse {
	w.t.Helper()

	res, err := w.Recv()
	require.NoError(w.t, err)
	require.NotEmpty(w.t, res.GetRing().GetName())

	if w.last == nil {
		require.Zero(w.t, res.GetRevision())
		require.Empty(w.t, res.GetJoined())
		require.Empty(w.t, res.GetLeft())
	} else {
		require.Greater(w.t, res.GetRevision(), w.last.GetRevision())
		// The shards that joined and left are the difference to the previous message.
		shards := append(available(w.last), res.GetJoined()...)
		shards = slices.DeleteFunc(shards, func(name string) bool { return slices.Contains(res.GetLeft(), name) })
		require.ElementsMatch(w.t, available(res), shards)
		require.True(w.t, slices.IsSorted(res.GetJoined()) && slices.IsSorted(res.GetLeft()))
	}

	w.last = res

	return res
}

// until returns the first wanted message.
func (w *watcher) until(wanted func(*pb.WatchRingResponse) bool) *pb.WatchRingResponse {
	w.t.Helper()

	for {
		if res := w.next(); wanted(res) {
			return res
		}
	}
}

// available returns the names of the available shards.
func available(res *pb.WatchRingResponse) (names []string) {
	for _, s := range res.GetShards() {
		if s.GetAvailable() {
			names = append(names, s.GetName())
		}
	}

	return names
}

func TestWatchRingTellsOfEveryChange(t *testing.T) {
	s := startServer(t)
	ring, ns := s.makeRing(configMaps())
	w := watch(t, s, ring)
	require.Empty(t, w.next().GetShards())

	a := s.shard(ring, ns, "a")
	require.NoError(t, a.Acquire(t.Context()))

	res := w.until(func(res *pb.WatchRingResponse) bool { return len(res.GetShards()) == 1 })
	require.Equal(t, []string{"a"}, res.GetJoined())
	require.Equal(t, "a", res.GetShards()[0].GetHolder())
	require.EqualValues(t, 16384, res.GetShards()[0].GetPartitions())
	require.EqualValues(t, 1, res.GetRing().GetAvailableShards())
	require.NotNil(t, res.GetShards()[0].GetRenewalAge())

	require.NoError(t, s.shard(ring, ns, "b").Acquire(t.Context()))
	require.Equal(t, []string{"b"}, w.until(func(res *pb.WatchRingResponse) bool { return len(res.GetShards()) == 2 }).GetJoined())

	s.label(ns, "b", "expired")

	res = w.until(func(res *pb.WatchRingResponse) bool {
		return res.GetShards()[1].GetState() == pb.ShardState_SHARD_STATE_EXPIRED
	})
	require.Empty(t, res.GetJoined())
	require.Empty(t, res.GetLeft())

	require.NoError(t, a.Release(t.Context()))

	res = w.until(func(res *pb.WatchRingResponse) bool { return res.GetShards()[0].GetHolder() == "" })
	require.Equal(t, []string{"a"}, res.GetLeft())
	require.Len(t, res.GetShards(), 2)

	require.NoError(t, a.Delete(t.Context()))
	require.Empty(t, w.until(func(res *pb.WatchRingResponse) bool { return len(res.GetShards()) == 1 }).GetLeft())

	s.condition(ring, "something is wrong")
	w.until(func(res *pb.WatchRingResponse) bool { return len(res.GetRing().GetConditions()) == 1 })

	object := &v1alpha1.ClusterRing{}
	require.NoError(t, s.plane.Client.Get(t.Context(), types.NamespacedName{Name: ring}, object))
	object.Spec.Resources[0].ControlledResources = nil
	require.NoError(t, s.plane.Client.Update(t.Context(), object))
	w.until(func(res *pb.WatchRingResponse) bool { return len(res.GetRing().GetResources()) == 1 })

	require.NoError(t, s.plane.Client.Delete(t.Context(), object))

	_, err := w.Recv()
	require.Equal(t, codes.NotFound, status.Code(err), err)
	require.Equal(t, "RING_NOT_FOUND", reason(err))
}

// condition writes the status of a ring, as services do.
func (s *server) condition(ring, message string) {
	s.t.Helper()

	object := &v1alpha1.ClusterRing{}
	require.NoError(s.t, s.plane.Client.Get(s.t.Context(), types.NamespacedName{Name: ring}, object))
	object.Status.Conditions = []metav1.Condition{
		{Type: "Ready", Status: "False", Reason: "Test", Message: message, LastTransitionTime: metav1.Now()},
	}
	require.NoError(s.t, s.plane.Client.Status().Update(s.t.Context(), object))
}

// reason returns the reason in an error.
func reason(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}

	return ""
}

// TestRenewalsAreNoMessages verifies that the message after many renewals is that of the next change, and that no revision is missing.
func TestRenewalsAreNoMessages(t *testing.T) {
	s := startServer(t)
	ring, ns := s.makeRing(configMaps())
	s.makeShards(ring, ns, "a")
	w := watch(t, s, ring)
	first := w.next()
	require.Len(t, first.GetShards(), 1)

	for range 20 {
		require.NoError(t, s.shard(ring, ns, "a").Renew(t.Context()))
	}
	s.label(ns, "a", "ready")

	res := w.next()
	require.Equal(t, pb.ShardState_SHARD_STATE_READY, res.GetShards()[0].GetState())
	require.EqualValues(t, 1, res.GetRevision())
	require.False(t, res.GetShards()[0].GetAgeIsLowerBound(), "the server has seen the Lease change")
}

// TestSlowReaderGetsTheLastState does not read while a ring changes 200 times, each time with a message of 32 KiB.
func TestSlowReaderGetsTheLastState(t *testing.T) {
	const changes = 200

	s := startServer(t)
	ring, ns := s.makeRing(configMaps())
	s.condition(ring, strings.Repeat("x", 32<<10))
	conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(1<<20))
	require.NoError(t, err)

	defer func() { _ = conn.Close() }()

	slow := watch(t, pb.NewDiagnosticsServiceClient(conn), ring)
	quick := watch(t, s, ring)
	slow.next()
	quick.next()

	for i := range changes {
		shard := s.shard(ring, ns, fmt.Sprintf("shard-%03d", i%20))
		if i%40 < 20 {
			require.NoError(t, shard.Acquire(t.Context()))
		} else {
			require.NoError(t, shard.Release(t.Context()))
		}
	}
	require.NoError(t, s.shard(ring, ns, "the-last").Acquire(t.Context()))

	last := func(res *pb.WatchRingResponse) bool { return slices.Contains(available(res), "the-last") }
	end := quick.until(last)
	require.GreaterOrEqual(t, end.GetRevision(), int64(changes+1), "each write is a change")

	got, gap := 0, int64(0)
	before := slow.last.GetRevision()
	res := slow.until(func(res *pb.WatchRingResponse) bool {
		got++
		gap = max(gap, res.GetRevision()-before)
		before = res.GetRevision()

		return last(res)
	})
	require.Equal(t, available(end), available(res))
	require.Equal(t, end.GetRing().GetFingerprint(), res.GetRing().GetFingerprint())
	require.Less(t, got, changes/2, "what the reader was too slow for was left out")
	require.Greater(t, gap, int64(changes/2))
	t.Logf("%d messages for %d changes", got, changes)
}

func TestWatchRingFailures(t *testing.T) {
	s := startServer(t)

	for name, want := range map[string]codes.Code{"no-such-ring": codes.NotFound, "": codes.InvalidArgument, "No Name": codes.InvalidArgument} {
		_, err := watch(t, s, name).Recv()
		require.Equal(t, want, status.Code(err), "%q: %v", name, err)
	}
}

// TestWatchesThatAreCancelledEnd verifies that they end on the server.
func TestWatchesThatAreCancelledEnd(t *testing.T) {
	s := startServer(t)
	ring, _ := s.makeRing(configMaps())
	before := cancelled(t, "WatchRing")

	const watches = 50
	for range watches {
		w := watch(t, s, ring)
		w.next()
		w.cancel()
		_, err := w.Recv()
		require.Equal(t, codes.Canceled, status.Code(err))
	}
	require.Eventually(t, func() bool { return cancelled(t, "WatchRing") >= before+watches }, patience, interval)
}

// cancelled returns how many calls of a method have ended at the server because the client gave up.
func cancelled(t *testing.T, method string) int {
	t.Helper()

	families, err := metrics.Registry.Gather()
	require.NoError(t, err)

	for _, family := range families {
		if family.GetName() != "grpc_server_handled_total" {
			continue
		}

		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}

			if labels["grpc_method"] == method && labels["grpc_code"] == "Canceled" {
				return int(m.GetCounter().GetValue())
			}
		}
	}

	return 0
}

func TestWatchEndsWhenTheServerStops(t *testing.T) {
	s := startServer(t)
	ring, _ := s.makeRing(configMaps())
	w := watch(t, s, ring)
	w.next()
	s.cancel()

	_, err := w.Recv()
	require.NotErrorIs(t, err, io.EOF)
	require.Equal(t, codes.Unavailable, status.Code(err), err)
}

// TestAgesOfRenewals verifies that ages are measured with the clock of the server, regardless of the times in the Lease.
func TestAgesOfRenewals(t *testing.T) {
	s := startServer(t)
	ring, ns := s.makeRing(configMaps())
	s.makeShards(ring, ns, "a")

	shard := func() *pb.Shard { return s.ring(ring).GetShards()[0] }

	require.True(t, shard().GetAgeIsLowerBound())
	age := shard().GetRenewalAge().AsDuration()
	require.Eventually(t, func() bool { return shard().GetRenewalAge().AsDuration() > age+time.Second }, patience, interval, "it grows")
	s.label(ns, "a", "ready")
	require.Eventually(t, func() bool { return shard().GetState() == pb.ShardState_SHARD_STATE_READY }, patience, interval)
	require.True(t, shard().GetAgeIsLowerBound(), "a label is no renewal")

	age = shard().GetRenewalAge().AsDuration()
	require.NoError(t, s.shard(ring, ns, "a").Renew(t.Context()))
	require.Eventually(t, func() bool {
		now := shard()
		return !now.GetAgeIsLowerBound() && now.GetRenewalAge().AsDuration() < age
	}, patience, interval)

	// A server that has just started has not seen the renewal.
	other := startServer(t)
	require.True(t, other.ring(ring).GetShards()[0].GetAgeIsLowerBound())
}
