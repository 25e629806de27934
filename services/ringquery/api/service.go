// Package api answers the queries of the gRPC interface: where an object belongs, where the objects of a resource are, and what would move
// if the shards changed. For explanations, it asks package explain.
//
// It validates requests, gets the rings from package rings, reads the objects in question from the API server, and converts errors to
// status codes. It writes nothing, and does not depend on the transport.
package api

import (
	"context"
	"sync"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery/explain"
	"github.com/clusterring/clusterring/services/ringquery/fanout"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// Service implements clusterring.diagnostics.v1alpha1.DiagnosticsService. It is safe for concurrent use.
type Service struct {
	// A method that this server does not support yet returns UNIMPLEMENTED.
	pb.UnimplementedDiagnosticsServiceServer

	// Rings is the source of all answers.
	Rings *rings.Rings
	// Ready returns nil once the sources of answers have been read.
	Ready func() error
	// Clock is that of the service.
	Clock clock.PassiveClock
	// Log receives internal errors.
	Log logr.Logger

	once sync.Once
	hub  *fanout.Hub[*picture] // created once
}

// Register registers the service on the server.
func (s *Service) Register(server grpc.ServiceRegistrar) {
	pb.RegisterDiagnosticsServiceServer(server, s)
}

// ListRings implements the method of the same name.
func (s *Service) ListRings(ctx context.Context, req *pb.ListRingsRequest) (*pb.ListRingsResponse, error) {
	return answer(ctx, s, func() (*pb.ListRingsResponse, error) {
		after, limit, err := page(req)
		if err != nil {
			return nil, err
		}

		all, err := s.Rings.All(ctx)
		if err != nil {
			return nil, err
		}

		res := &pb.ListRingsResponse{}

		for _, ring := range all {
			switch {
			case ring.Name <= after:
			case len(res.GetRings()) == limit:
				res.NextPageToken = pageToken(res.GetRings()[limit-1].GetName())
				return res, nil
			default:
				res.Rings = append(res.Rings, ring.Message())
			}
		}

		return res, nil
	})
}

// GetRing implements the method of the same name.
func (s *Service) GetRing(ctx context.Context, req *pb.GetRingRequest) (*pb.GetRingResponse, error) {
	return answer(ctx, s, func() (*pb.GetRingResponse, error) {
		name, err := ringName(req)
		if err != nil {
			return nil, err
		}

		ring, err := s.Rings.Get(ctx, name)
		if err != nil {
			return nil, err
		}

		res := &pb.GetRingResponse{Ring: ring.Message(), Shards: s.Rings.Shards(ring)}
		if req.GetCountObjects() {
			if err := s.addLoads(ctx, ring, res); err != nil {
				return nil, err
			}
		}

		return res, nil
	})
}

// Explain implements the method of the same name.
func (s *Service) Explain(ctx context.Context, req *pb.ExplainRequest) (*pb.ExplainResponse, error) {
	return answer(ctx, s, func() (*pb.ExplainResponse, error) {
		q, err := explainQuestion(req)
		if err != nil {
			return nil, err
		}

		q.Now = s.Clock.Now()

		return explain.Answer(ctx, s.Rings, q)
	})
}

// answer returns the result of f, with its error converted to a status.
func answer[T any](ctx context.Context, s *Service, f func() (*T, error)) (*T, error) {
	if err := s.ready(); err != nil {
		return nil, err
	}

	res, err := f()
	if err == nil {
		return res, nil
	}

	return nil, s.statusOf(ctx, err).Err() //nolint:wrapcheck // a status already
}

// statusOf returns the status for an error. It logs internal errors.
func (s *Service) statusOf(ctx context.Context, err error) *status.Status {
	st, fault := statusOf(err)
	if fault {
		method, _ := grpc.Method(ctx)
		s.Log.Error(err, "Failed to answer", "method", method)
	}

	return st
}

func (s *Service) ready() error {
	if err := s.Ready(); err != nil {
		st, _ := statusOf(&notReadyError{err})
		return st.Err() //nolint:wrapcheck // a status already
	}

	return nil
}

// notReadyError is rings.ErrNotReady with a reason.
type notReadyError struct{ reason error }

func (e *notReadyError) Error() string {
	return "try again, or ask another server: " + e.reason.Error()
}
func (*notReadyError) Unwrap() error { return rings.ErrNotReady }
