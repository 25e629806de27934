package api

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/clusterring/clusterring/services/ringquery/metadata"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// ErrorDomain is the domain of the google.rpc.ErrorInfo in errors of this service.
const ErrorDomain = "diagnostics.sharding.timebertt.dev"

// outcome is how an error of the domain looks to a client.
type outcome struct {
	err  error
	code codes.Code
	// reason is the word for programs; none if the code says it all.
	reason string
}

// outcomes is the one place where errors become status codes. The first that matches counts; an error that none matches is a
// fault of the server. The codes are documented on the service in the .proto file.
var outcomes = []outcome{
	{rings.ErrInvalid, codes.InvalidArgument, "INVALID"},
	{rings.ErrRingNotFound, codes.NotFound, "RING_NOT_FOUND"},
	{rings.ErrNotSharded, codes.FailedPrecondition, "NOT_SHARDED"},
	{rings.ErrOwnerNeeded, codes.FailedPrecondition, "OWNER_NEEDED"},
	{rings.ErrNotReadable, codes.FailedPrecondition, "NOT_READABLE"},
	{metadata.ErrForbidden, codes.FailedPrecondition, "NOT_READABLE"},
	{metadata.ErrNotServed, codes.FailedPrecondition, "NOT_SERVED"},
	{metadata.ErrNotFound, codes.NotFound, "OBJECT_NOT_FOUND"},
	{metadata.ErrExpired, codes.Aborted, "PAGE_EXPIRED"},
	{metadata.ErrUnavailable, codes.Unavailable, "API_SERVER_UNAVAILABLE"},
	{rings.ErrNotReady, codes.Unavailable, "NOT_READY"},
	{context.Canceled, codes.Canceled, ""},
	{context.DeadlineExceeded, codes.DeadlineExceeded, ""},
}

// statusOf returns the status that a client gets for an error of the domain, and whether the error is a fault of the server,
// whose text is then kept from the client.
func statusOf(err error) (st *status.Status, fault bool) {
	if ended, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok {
		return ended.GRPCStatus(), false // a stream has ended, and gRPC knows why
	}

	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return withDetails(status.New(o.code, err.Error()), o.reason, err), false
		}
	}

	return status.New(codes.Internal, "the server failed to answer; its log says more"), true
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
		return st // the code and the message are worth more than the details
	}

	return full
}
