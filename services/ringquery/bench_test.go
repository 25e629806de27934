package ringquery

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/ringquery/api"
	"github.com/clusterring/clusterring/services/ringquery/transport"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// Benchmarks of one caller and one server on one core. A server with a core of its own answers more queries.
//
//	go test -run '^$' -bench . ./services/ringquery
//
// "handler" is the method alone, "grpc" the same through a connection with the server's interceptors, "stream" many queries
// over one stream.

// BenchmarkLocate locates objects with different names, without next shards and with two of them.
func BenchmarkLocate(b *testing.B) {
	each(b, func(b *testing.B, w *benched, ring string) {
		b.Helper()

		for _, next := range []int32{0, 2} {
			locate := func(i int) *pb.LocateRequest {
				return &pb.LocateRequest{Ring: ring, NextShards: new(next), Object: &pb.ObjectReference{
					Type: &pb.ObjectReference_Resource{Resource: "configmaps"}, Namespace: "default", Name: fmt.Sprint("object-", i),
				}}
			}
			b.Run(fmt.Sprintf("next=%d/handler", next), func(b *testing.B) {
				measure(b, func(i int) error { _, err := w.service.Locate(b.Context(), locate(i)); return err })
			})
			b.Run(fmt.Sprintf("next=%d/grpc", next), func(b *testing.B) {
				measure(b, func(i int) error { _, err := w.client.Locate(b.Context(), locate(i)); return err })
			})
			b.Run(fmt.Sprintf("next=%d/stream", next), func(b *testing.B) {
				stream, err := w.client.LocateAll(b.Context())
				require.NoError(b, err)

				ends := make(chan error, 1)
				measureAll(b, func(n int) error {
					go func() {
						var err error
						for i := 0; i < n && err == nil; i++ {
							err = stream.Send(&pb.LocateAllRequest{Question: locate(i)})
						}
						ends <- err
					}()

					for range n {
						if _, err := stream.Recv(); err != nil {
							return err
						}
					}

					return <-ends
				})
				require.NoError(b, stream.CloseSend())
			})
		}
	})
}

// BenchmarkGetRing gets the ring with all its shards.
func BenchmarkGetRing(b *testing.B) {
	each(b, func(b *testing.B, w *benched, ring string) {
		b.Helper()

		b.Run("handler", func(b *testing.B) {
			measure(b, func(int) error { _, err := w.service.GetRing(b.Context(), &pb.GetRingRequest{Name: ring}); return err })
		})
		b.Run("grpc", func(b *testing.B) {
			measure(b, func(int) error { _, err := w.client.GetRing(b.Context(), &pb.GetRingRequest{Name: ring}); return err })
		})
	})
}

// each runs a benchmark for rings of different sizes.
func each(b *testing.B, run func(b *testing.B, w *benched, ring string)) {
	b.Helper()

	w := startBenched(b)
	for _, shards := range []int{3, 300} {
		ring := w.makeRing(b, shards)
		b.Run(fmt.Sprintf("shards=%d", shards), func(b *testing.B) { run(b, w, ring) })
	}
}

// measure calls f on one core.
func measure(b *testing.B, f func(i int) error) {
	b.Helper()
	measureAll(b, func(n int) error {
		for i := range n {
			if err := f(i); err != nil {
				return err
			}
		}

		return nil
	})
}

func measureAll(b *testing.B, f func(n int) error) {
	b.Helper()

	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	b.ReportAllocs()
	b.ResetTimer()
	err := f(b.N)
	b.StopTimer()
	require.NoError(b, err)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}

// benched is the service with its server, in its own manager.
type benched struct {
	service *api.Service
	client  pb.DiagnosticsServiceClient
	plane   *localplane.Plane
}

func startBenched(b *testing.B) *benched {
	b.Helper()

	w := &benched{plane: localplane.Shared(b)}
	mgr, err := manager.New(w.plane.Config, manager.Options{
		Scheme: w.plane.Client.Scheme(), Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
	})
	require.NoError(b, err)

	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	rt := &kit.Runtime{Manager: mgr, Clock: clock.RealClock{}, Log: logr.Discard()}
	w.service, err = answers(ctx, rt, rt.Ready)
	require.NoError(b, err)

	server := &transport.Server{
		Register: w.service.Register, Ready: rt.Ready, DrainTime: time.Second,
		Clock: clock.RealClock{}, Log: logr.Discard(),
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	server.Options.AddFlags(flags)
	require.NoError(b, flags.Parse([]string{"--plaintext", "--grpc-bind-address", "127.0.0.1:0"}))
	require.NoError(b, server.SetupWithManager(mgr))

	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	b.Cleanup(func() {
		cancel()
		require.NoError(b, <-done)
	})
	require.Eventually(b, func() bool { return server.Address() != nil && rt.Ready() == nil }, time.Minute, 10*time.Millisecond)

	conn, err := grpc.NewClient(server.Address().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	b.Cleanup(func() { _ = conn.Close() })

	w.client = pb.NewDiagnosticsServiceClient(conn)

	return w
}

// makeRing creates a ring with shards, and waits until the service knows them.
func (w *benched) makeRing(b *testing.B, shards int) string {
	b.Helper()

	namespace := w.plane.Namespace(b)
	ring := &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: "ring-of-" + namespace},
		Spec:       v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Resource: "configmaps"}}},
	}
	require.NoError(b, w.plane.Client.Create(b.Context(), ring))
	b.Cleanup(func() {
		_ = client.IgnoreNotFound(w.plane.Client.Delete(context.WithoutCancel(b.Context()), ring))
	})

	for i := range shards {
		shard := &leasetest.Shard{Client: w.plane.Client, Ring: ring.Name, Namespace: namespace, Name: fmt.Sprintf("shard-%03d", i)}
		require.NoError(b, shard.Acquire(b.Context()))
	}
	require.Eventually(b, func() bool {
		res, err := w.service.GetRing(b.Context(), &pb.GetRingRequest{Name: ring.Name})
		return err == nil && int(res.GetRing().GetAvailableShards()) == shards
	}, time.Minute, 10*time.Millisecond)

	return ring.Name
}
