// Package api answers the queries of the gRPC interface: where an object belongs, where the objects of a resource are,
// and what would move if the shards changed. For explanations, it asks package explain.
//
// It validates requests, gets the rings from package rings, reads the objects in question from the API server, and
// converts errors to status codes. It writes nothing, and does not depend on the transport.
package api

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-logr/logr"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"k8s.io/apimachinery/pkg/util/sets"
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

	watches *fanout.Hub[*pb.GetRingResponse] // of rings
}

// Register registers the service on the server, which must have the interceptor [Service.Stream] also for unary calls.
// Call it before the sources of answers change.
func (s *Service) Register(server grpc.ServiceRegistrar) {
	s.watches = fanout.NewHub(func(ctx context.Context, name string) (*pb.GetRingResponse, error) {
		_, is, err := s.now(ctx, name)
		return is, err
	}, same, s.Clock)
	pb.RegisterDiagnosticsServiceServer(server, s)
}

// Stream is an interceptor: the methods of the service answer while it is ready, and their errors become statuses.
func (s *Service) Stream(
	srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	if srv != any(s) {
		return handler(srv, stream)
	}

	err := s.Ready()
	if err == nil {
		err = handler(srv, stream)
	} else {
		err = fmt.Errorf("%w: try again, or ask another server: %w", rings.ErrNotReady, err)
	}

	return s.statusOf(stream.Context(), err).Err() //nolint:wrapcheck // a status already
}

// ListRings implements the method of the same name.
func (s *Service) ListRings(ctx context.Context, req *pb.ListRingsRequest) (*pb.ListRingsResponse, error) {
	after, limit, err := page(req)
	if err != nil {
		return nil, err
	}

	all, err := s.Rings.Select(ctx, "")
	if err != nil {
		return nil, err
	}

	res := &pb.ListRingsResponse{}

	for _, ring := range all {
		switch {
		case ring.Name <= after:
		case len(res.GetRings()) == limit:
			res.NextPageToken = res.GetRings()[limit-1].GetName()
			return res, nil
		default:
			res.Rings = append(res.Rings, ring.Message())
		}
	}

	return res, nil
}

// GetRing implements the method of the same name.
func (s *Service) GetRing(ctx context.Context, req *pb.GetRingRequest) (*pb.GetRingResponse, error) {
	if err := checkName(req.GetName()); err != nil {
		return nil, err
	}

	ring, res, err := s.now(ctx, req.GetName())
	if err == nil && req.GetCountObjects() {
		err = s.addLoads(ctx, ring, res)
	}

	return res, err
}

// now returns a ring, and its current state with its shards.
func (s *Service) now(ctx context.Context, name string) (rings.Ring, *pb.GetRingResponse, error) {
	ring, err := s.Rings.Get(ctx, name)
	if err != nil {
		return ring, nil, err
	}

	return ring, &pb.GetRingResponse{Ring: ring.Message(), Shards: s.Rings.Shards(ctx, ring)}, nil
}

// Explain implements the method of the same name.
func (s *Service) Explain(ctx context.Context, req *pb.ExplainRequest) (*pb.ExplainResponse, error) {
	var v violations
	v.optional("ring", req.GetRing(), validateRing)
	object := v.object(req.GetObject())

	if err := v.err(); err != nil {
		return nil, err
	}

	facts, err := explain.Gather(ctx, s.Rings, req.GetRing(), object)
	if err != nil {
		return nil, err
	}

	facts.Now = s.Clock.Now()

	return explain.Explain(facts), nil
}

// same reports whether two states of a ring differ only in ages.
func same(is, was *pb.GetRingResponse) bool {
	return proto.Equal(is.GetRing(), was.GetRing()) && slices.EqualFunc(is.GetShards(), was.GetShards(),
		func(a, b *pb.Shard) bool {
			a = proto.CloneOf(a)
			a.RenewalAge, a.AgeIsLowerBound = b.GetRenewalAge(), b.GetAgeIsLowerBound()

			return proto.Equal(a, b)
		})
}

// RingChanged notifies the watchers of a ring that the ring or one of its shards has changed. Call it after Rings
// contains the change. It does not block.
func (s *Service) RingChanged(name string) { s.watches.Changed(name) }

// WatchRing implements the method of the same name: it sends the state of the ring after each change until the stream
// ends.
func (s *Service) WatchRing(req *pb.WatchRingRequest, stream grpc.ServerStreamingServer[pb.WatchRingResponse]) error {
	if err := checkName(req.GetName()); err != nil {
		return err
	}

	var sent *pb.GetRingResponse

	return s.watches.Follow(stream.Context(), req.GetName(), func(is *pb.GetRingResponse, revision int64) error {
		res := &pb.WatchRingResponse{Ring: is.GetRing(), Shards: is.GetShards(), Revision: revision}

		if sent != nil {
			before, after := available(sent), available(is)
			res.Joined, res.Left = sets.List(after.Difference(before)), sets.List(before.Difference(after))
		}

		sent = is

		return stream.Send(res)
	})
}

// available returns the names of the available shards.
func available(ring *pb.GetRingResponse) sets.Set[string] {
	names := sets.New[string]()

	for _, s := range ring.GetShards() {
		if s.GetAvailable() {
			names.Insert(s.GetName())
		}
	}

	return names
}

// ErrorDomain is the domain of the google.rpc.ErrorInfo in errors of this service.
const ErrorDomain = "diagnostics.sharding.timebertt.dev"

// outcome is the status for an error.
type outcome struct {
	err  error
	code codes.Code
	// reason is that of the google.rpc.ErrorInfo. Empty: the code is sufficient.
	reason string
}

// outcomes maps errors to statuses. The first match wins. An error without a match is an internal error. The .proto
// file of the service documents the codes.
var outcomes = []outcome{
	{rings.ErrInvalid, codes.InvalidArgument, "INVALID"},
	{rings.ErrRingNotFound, codes.NotFound, "RING_NOT_FOUND"},
	{rings.ErrNotAdded, codes.FailedPrecondition, "NOT_SHARDED"},
	{rings.ErrOwnerNeeded, codes.FailedPrecondition, "OWNER_NEEDED"},
	{rings.ErrLabelsNeeded, codes.FailedPrecondition, "LABELS_NEEDED"},
	{rings.ErrForbidden, codes.FailedPrecondition, "NOT_READABLE"},
	{rings.ErrNotServed, codes.FailedPrecondition, "NOT_SERVED"},
	{rings.ErrNotFound, codes.NotFound, "OBJECT_NOT_FOUND"},
	{rings.ErrExpired, codes.Aborted, "PAGE_EXPIRED"},
	{rings.ErrUnavailable, codes.Unavailable, "API_SERVER_UNAVAILABLE"},
	{rings.ErrNotReady, codes.Unavailable, "NOT_READY"},
	{context.Canceled, codes.Canceled, ""},
	{context.DeadlineExceeded, codes.DeadlineExceeded, ""},
}

// statusOf returns the status for an error; nil for none. It logs internal errors, whose texts are kept from the
// client.
func (s *Service) statusOf(ctx context.Context, err error) *status.Status {
	if st, ok := status.FromError(err); ok {
		return st // there is no error, or a stream has ended, and the error is that of gRPC
	}

	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return withDetails(status.New(o.code, err.Error()), o.reason, err)
		}
	}

	method, _ := grpc.Method(ctx)
	s.Log.Error(err, "Failed to answer", "method", method)

	return status.New(codes.Internal, "the server failed to answer; see its log")
}

func withDetails(st *status.Status, reason string, err error) *status.Status {
	if reason == "" {
		return st
	}

	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: reason, Domain: ErrorDomain}}

	if invalid, ok := errors.AsType[rings.InvalidError](err); ok {
		details = append(details, &errdetails.BadRequest{FieldViolations: invalid})
	}

	full, failed := st.WithDetails(details...)
	if failed != nil {
		return st // the code and the message matter more than the details
	}

	return full
}
