package ringquery_test

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
)

// BenchmarkQueries has one caller and one server on one core. A server with a core of its own answers more queries.
// LocateAll is Locate for many objects over one stream.
//
//	go test -run '^$' -bench . ./services/ringquery
func BenchmarkQueries(b *testing.B) {
	s := startServer(b)

	for _, shards := range []int{3, 300} {
		ring, namespace := s.makeRing(configMaps())

		names := make([]string, shards)
		for i := range names {
			names[i] = fmt.Sprintf("shard-%03d", i)
		}
		s.makeShards(ring, namespace, names...)

		locate := func(i int) *pb.LocateRequest {
			return &pb.LocateRequest{Ring: ring, Object: byResource("configmaps", "default", fmt.Sprint("object-", i))}
		}

		for name, query := range map[string]func(n int) error{
			"GetRing": each(func(int) error { _, err := s.GetRing(b.Context(), &pb.GetRingRequest{Name: ring}); return err }),
			"Locate":  each(func(i int) error { _, err := s.Locate(b.Context(), locate(i)); return err }),
			"LocateAll": func(n int) error {
				stream, err := s.LocateAll(b.Context())
				if err != nil {
					return err
				}

				sent := make(chan error, 1)

				go func() {
					var err error
					for i := 0; i < n && err == nil; i++ {
						err = stream.Send(&pb.LocateAllRequest{Question: locate(i)})
					}
					sent <- errors.Join(err, stream.CloseSend())
				}()

				for range n {
					if _, err := stream.Recv(); err != nil {
						return err
					}
				}

				return <-sent
			},
		} {
			b.Run(fmt.Sprintf("%s/shards=%d", name, shards), func(b *testing.B) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
				b.ReportAllocs()
				b.ResetTimer()
				err := query(b.N)
				b.StopTimer()
				require.NoError(b, err)
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
			})
		}
	}
}

// each asks one query after the other.
func each(ask func(i int) error) func(n int) error {
	return func(n int) error {
		for i := range n {
			if err := ask(i); err != nil {
				return err
			}
		}

		return nil
	}
}
