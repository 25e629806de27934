package auth

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// Reasons of the google.rpc.ErrorInfo in errors.
const (
	reasonUnauthenticated = "UNAUTHENTICATED"
	reasonDenied          = "PERMISSION_DENIED"
	reasonUnavailable     = "API_SERVER_UNAVAILABLE"
)

// viewerRole is the ClusterRole in deploy/base/ringquery that grants access to all rings.
const viewerRole = "clusterring:diagnostics-viewer"

// unauthenticated returns the error for a caller that was not authenticated, and why. Problems that are nil are ignored.
func (g *Guard) unauthenticated(problems ...error) error {
	wanted := "send a token that the API server accepts"
	if len(g.Options.Audiences) > 0 {
		wanted = fmt.Sprintf("send a token for the audience %q (kubectl create token NAME --audience %[1]s)", g.Options.Audiences[0])
	}

	wanted += `, as metadata "authorization: Bearer <token>"`
	if g.certificates != nil {
		wanted += ", or a client certificate"
	}

	problem := "the server requires authentication"
	if err := errors.Join(problems...); err != nil {
		problem = strings.ReplaceAll(err.Error(), "\n", "; ")
	}

	return g.status(codes.Unauthenticated, problem+": "+wanted, &errdetails.ErrorInfo{Reason: reasonUnauthenticated})
}

// denied returns the error for a missing permission, and how to get the permission.
func (g *Guard) denied(user, ring string) error {
	what, object := "all rings at once", resource+"."+v1alpha1.GroupVersion.Group
	if ring != "" {
		what, object = fmt.Sprintf("ring %q", ring), object+"/"+ring
	}

	message := fmt.Sprintf("user %q may not %s %s/%s of %s: this requires the verb %q on resource %s/%s of API group %s, "+
		"which the ClusterRole %s grants on all rings; to check, run 'kubectl auth can-i %s %s --subresource=%s'",
		user, verb, resource, subresource, what, verb, resource, subresource, v1alpha1.GroupVersion.Group,
		viewerRole, verb, object, subresource)

	return g.status(codes.PermissionDenied, message, &errdetails.ErrorInfo{Reason: reasonDenied, Metadata: map[string]string{
		"user": user, "verb": verb, "group": v1alpha1.GroupVersion.Group, "resource": resource, "subresource": subresource, "name": ring,
	}})
}

// unknown returns the error for a failed request to the API server. The cause is logged and kept from the caller.
func (g *Guard) unknown(ctx context.Context, err error, what string) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err() //nolint:wrapcheck // a status is what a caller gets
	}

	g.Log.Error(err, "Failed to ask the API server", "about", what)

	return g.status(codes.Unavailable, "the API server did not report "+what+": try again, or ask another server",
		&errdetails.ErrorInfo{Reason: reasonUnavailable})
}

func (g *Guard) status(code codes.Code, message string, info *errdetails.ErrorInfo) error {
	info.Domain = g.Domain
	short := status.New(code, message)

	full, err := short.WithDetails(info)
	if err != nil {
		return short.Err() //nolint:wrapcheck // the code and the message matter more than the details
	}

	return full.Err() //nolint:wrapcheck // a status is what a caller gets
}
