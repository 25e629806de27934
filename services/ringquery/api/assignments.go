package api

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/util/validation"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery/query"
)

// Pages of assignments, as the .proto file documents them.
const (
	defaultAssignments = 500
	maxAssignments     = 5000
)

// ListAssignments implements the method of the same name.
func (s *Service) ListAssignments(ctx context.Context, req *pb.ListAssignmentsRequest) (*pb.ListAssignmentsResponse, error) {
	return answer(ctx, s, func() (*pb.ListAssignmentsResponse, error) {
		asked, err := assignmentsQuery(req)
		if err != nil {
			return nil, err
		}

		res, err := query.List(ctx, s.Rings, asked)
		if err != nil {
			return nil, err
		}

		if res.GetNextPageToken() != "" {
			res.NextPageToken = assignmentsToken(req, res.GetNextPageToken())
		}

		return res, nil
	})
}

// assignmentsQuery returns a valid request with the page size and the page token of the API server. Its states limit the list; no
// states: they do not.
func assignmentsQuery(req *pb.ListAssignmentsRequest) (*pb.ListAssignmentsRequest, error) {
	var v violations
	v.check("ring", validateRing(req.GetRing()))
	v.optional("group", req.GetGroup(), validation.IsDNS1123Subdomain)
	v.check("resource", required(req.GetResource(), validation.IsDNS1123Label))
	v.optional("namespace", req.GetNamespace(), validation.IsDNS1123Label)
	v.check("shard", validation.IsValidLabelValue(req.GetShard()))

	asked := proto.CloneOf(req)
	asked.PageSize = v.pageSize(req.GetPageSize(), defaultAssignments, maxAssignments)

	for _, state := range req.GetStates() {
		if _, known := pb.AssignmentState_name[int32(state)]; !known {
			v.add("states", "%d is not a state that this server knows", state)
		}
	}

	if slices.Contains(req.GetStates(), pb.AssignmentState_ASSIGNMENT_STATE_UNSPECIFIED) {
		asked.States = nil
	}

	if token := req.GetPageToken(); token != "" {
		asked.PageToken = v.assignmentsToken(req, token)
	}

	return asked, v.err()
}

// A page token of assignments consists of the digest of the request and the continue token of the API server.

// assignmentsToken returns the page token for a continue token.
func assignmentsToken(req *pb.ListAssignmentsRequest, next string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(digest(req) + "/" + next))
}

// assignmentsToken returns the continue token. Apart from the page token, the request must be the same as before.
func (v *violations) assignmentsToken(req *pb.ListAssignmentsRequest, token string) (next string) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	was, next, ok := strings.Cut(string(text), "/")

	switch {
	case err != nil || !ok || next == "":
		v.add("page_token", "must be the next_page_token of an earlier answer")
	case was != digest(req):
		v.add("page_token", "belongs to another request: change only the page token of a request, or begin with the first page")
	}

	return next
}

// digest returns a digest of the request without its page token.
func digest(req *pb.ListAssignmentsRequest) string {
	all := proto.CloneOf(req)
	all.PageToken = ""

	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(all)
	if err != nil {
		return "" // cannot happen: the message was decoded from this form
	}

	sum := sha256.Sum256(wire)

	return hex.EncodeToString(sum[:8])
}
