package api

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// ErrorDomain is the domain of the google.rpc.ErrorInfo in errors of this service.
const ErrorDomain = "diagnostics.sharding.timebertt.dev"

// outcome is the status for an error.
type outcome struct {
	err  error
	code codes.Code
	// reason is that of the google.rpc.ErrorInfo. Empty: the code is sufficient.
	reason string
}

// outcomes maps errors to statuses. The first match wins. An error without a match is an internal error. The .proto file of the service
// documents the codes.
var outcomes = []outcome{
	{rings.ErrInvalid, codes.InvalidArgument, "INVALID"},
	{rings.ErrRingNotFound, codes.NotFound, "RING_NOT_FOUND"},
	{rings.ErrNotAdded, codes.FailedPrecondition, "NOT_SHARDED"},
	{rings.ErrOwnerNeeded, codes.FailedPrecondition, "OWNER_NEEDED"},
	{rings.ErrLabelsNeeded, codes.FailedPrecondition, "LABELS_NEEDED"},
	{rings.ErrNotReadable, codes.FailedPrecondition, "NOT_READABLE"},
	{rings.ErrForbidden, codes.FailedPrecondition, "NOT_READABLE"},
	{rings.ErrNotServed, codes.FailedPrecondition, "NOT_SERVED"},
	{rings.ErrNotFound, codes.NotFound, "OBJECT_NOT_FOUND"},
	{rings.ErrExpired, codes.Aborted, "PAGE_EXPIRED"},
	{rings.ErrUnavailable, codes.Unavailable, "API_SERVER_UNAVAILABLE"},
	{rings.ErrNotReady, codes.Unavailable, "NOT_READY"},
	{context.Canceled, codes.Canceled, ""},
	{context.DeadlineExceeded, codes.DeadlineExceeded, ""},
}

// statusOf returns the status for an error, and whether it is an internal error, whose text is kept from the client.
func statusOf(err error) (st *status.Status, fault bool) {
	if ended, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok {
		return ended.GRPCStatus(), false // a stream has ended, and the error is that of gRPC
	}

	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return withDetails(status.New(o.code, err.Error()), o.reason, err), false
		}
	}

	return status.New(codes.Internal, "the server failed to answer; see its log"), true
}

func withDetails(st *status.Status, reason string, err error) *status.Status {
	if reason == "" {
		return st
	}

	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: reason, Domain: ErrorDomain}}

	if invalid, ok := errors.AsType[*rings.InvalidError](err); ok {
		details = append(details, &errdetails.BadRequest{FieldViolations: invalid.Violations})
	}

	full, err := st.WithDetails(details...)
	if err != nil {
		return st // the code and the message matter more than the details
	}

	return full
}
