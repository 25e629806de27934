package api

import (
	"context"
	"errors"
	"io"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
)

// LocateAll implements the method of the same name. It reads the next question after it has sent the previous answer, so that a client
// that does not read answers cannot fill the memory of the server.
func (s *Service) LocateAll(stream grpc.BidiStreamingServer[pb.LocateAllRequest, pb.LocateAllResponse]) error {
	if err := s.ready(); err != nil {
		return err
	}

	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}

		if err != nil {
			return err //nolint:wrapcheck // a status already
		}

		res, err := s.locateOne(stream.Context(), req)
		if err != nil {
			return err
		}

		if err := stream.Send(res); err != nil {
			return err //nolint:wrapcheck // the stream has ended
		}
	}
}

// locateOne answers one question of a stream. An error ends the stream.
func (s *Service) locateOne(ctx context.Context, req *pb.LocateAllRequest) (*pb.LocateAllResponse, error) {
	res := &pb.LocateAllResponse{Id: req.GetId()}

	err := bulk(req)

	var located *pb.LocateResponse
	if err == nil {
		located, err = s.locate(ctx, req.GetQuestion())
	}

	if err == nil {
		res.Result = &pb.LocateAllResponse_Answer{Answer: located}
		return res, nil
	}

	st := s.statusOf(ctx, err)
	if ctx.Err() != nil {
		return nil, st.Err() //nolint:wrapcheck // a status already
	}

	res.Result = &pb.LocateAllResponse_Error{Error: locateErrorOf(st)}

	return res, nil
}

// locateErrorOf converts a status to a part of an answer.
func locateErrorOf(st *status.Status) *pb.LocateError {
	e := &pb.LocateError{Code: int32(st.Code()), Message: st.Message()}

	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			e.Reason = d.GetReason()
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				e.Violations = append(e.Violations, v.GetField()+": "+v.GetDescription())
			}
		}
	}

	return e
}
