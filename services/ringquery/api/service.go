// Package api is the gRPC interface of packages query and explain. It validates requests and converts errors to status codes. It does
// not depend on the transport.
package api

import (
	"context"
	"sync"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery/fanout"
	"github.com/clusterring/clusterring/services/ringquery/query"
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

		found, more, err := s.Rings.Page(ctx, after, limit)
		if err != nil {
			return nil, err
		}

		res := &pb.ListRingsResponse{}
		for _, ring := range found {
			res.Rings = append(res.Rings, ring.Message())
		}

		if more {
			res.NextPageToken = pageToken(found[len(found)-1].Name)
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

		res := &pb.GetRingResponse{Ring: ring.Message()}
		for _, shard := range s.Rings.Shards(ring) {
			res.Shards = append(res.Shards, shard.Message())
		}

		if req.GetCountObjects() {
			if err := query.Load(ctx, s.Rings, ring, res); err != nil {
				return nil, err
			}
		}

		return res, nil
	})
}

// Locate implements the method of the same name.
func (s *Service) Locate(ctx context.Context, req *pb.LocateRequest) (*pb.LocateResponse, error) {
	return answer(ctx, s, func() (*pb.LocateResponse, error) { return s.locate(ctx, req) })
}

// locate answers one question.
func (s *Service) locate(ctx context.Context, req *pb.LocateRequest) (*pb.LocateResponse, error) {
	q, err := question(req)
	if err != nil {
		return nil, err
	}

	locations, err := query.Locate(ctx, s.Rings, q)
	if err != nil {
		return nil, err
	}

	return &pb.LocateResponse{Locations: locations}, nil
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
