package ringquery_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
)

// TestEveryMistakeIsNamed sends requests with one invalid field each. The answer names only this field.
func TestEveryMistakeIsNamed(t *testing.T) {
	s := startServer(t)
	object := func(change func(*pb.ObjectReference)) *pb.LocateRequest {
		o := byResource("configmaps", "default", "x")
		change(o)

		return &pb.LocateRequest{Object: o}
	}
	owner := func(change func(*pb.OwnerReference)) *pb.LocateRequest {
		o := ownerByKind("ConfigMap", "x")
		change(o)

		return &pb.LocateRequest{Object: byResource("secrets", "default", "x"), Owner: o}
	}
	assignments := func(change func(*pb.ListAssignmentsRequest)) *pb.ListAssignmentsRequest {
		req := &pb.ListAssignmentsRequest{Ring: "r", Resource: "configmaps"}
		change(req)

		return req
	}
	many := make([]string, 1001)

	for _, c := range []struct {
		field string
		req   any
	}{
		{"page_size", &pb.ListRingsRequest{PageSize: -1}},
		{"page_token", &pb.ListRingsRequest{PageToken: "?"}},
		{"name", &pb.GetRingRequest{}},
		{"name", &pb.WatchRingRequest{Name: "A"}},

		{"ring", &pb.LocateRequest{Ring: "A", Object: byResource("configmaps", "default", "x")}},
		{"object", &pb.LocateRequest{}},
		{"object", object(func(o *pb.ObjectReference) { o.Type = nil })},
		{"object.group", object(func(o *pb.ObjectReference) { o.Group = "a/b" })},
		{"object.kind", object(func(o *pb.ObjectReference) { o.Type = &pb.ObjectReference_Kind{Kind: "a b"} })},
		{"object.resource", object(func(o *pb.ObjectReference) { o.Type = &pb.ObjectReference_Resource{Resource: "A"} })},
		{"object.namespace", object(func(o *pb.ObjectReference) { o.Namespace = "A" })},
		{"object.name", object(func(o *pb.ObjectReference) { o.Name = "" })},
		{"owner", owner(func(o *pb.OwnerReference) { o.Type = nil })},
		{"owner.group", owner(func(o *pb.OwnerReference) { o.Group = "a/b" })},
		{"owner.kind", owner(func(o *pb.OwnerReference) { o.Type = &pb.OwnerReference_Kind{Kind: "a b"} })},
		{"owner.resource", owner(func(o *pb.OwnerReference) { o.Type = &pb.OwnerReference_Resource{Resource: "A"} })},
		{"owner.name", owner(func(o *pb.OwnerReference) { o.Name = "a/b" })},
		{"next_shards", &pb.LocateRequest{Object: byResource("configmaps", "default", "x"), NextShards: new(int32(-1))}},

		{"id", &pb.LocateAllRequest{Id: strings.Repeat("x", 257), Question: &pb.LocateRequest{}}},
		{"question", &pb.LocateAllRequest{}},
		{"object", &pb.LocateAllRequest{Question: &pb.LocateRequest{}}},

		{"ring", assignments(func(r *pb.ListAssignmentsRequest) { r.Ring = "" })},
		{"group", assignments(func(r *pb.ListAssignmentsRequest) { r.Group = "a/b" })},
		{"resource", assignments(func(r *pb.ListAssignmentsRequest) { r.Resource = "" })},
		{"namespace", assignments(func(r *pb.ListAssignmentsRequest) { r.Namespace = "A" })},
		{"shard", assignments(func(r *pb.ListAssignmentsRequest) { r.Shard = "a/b" })},
		{"states", assignments(func(r *pb.ListAssignmentsRequest) { r.States = []pb.AssignmentState{99} })},
		{"page_size", assignments(func(r *pb.ListAssignmentsRequest) { r.PageSize = -1 })},
		{"page_token", assignments(func(r *pb.ListAssignmentsRequest) { r.PageToken = "?" })},

		{"ring", &pb.SimulateRequest{}},
		{"add", &pb.SimulateRequest{Ring: "r", Add: many}},
		{"remove", &pb.SimulateRequest{Ring: "r", Remove: many}},
		{"rename", &pb.SimulateRequest{Ring: "r", Rename: make([]*pb.Rename, 1001)}},
		{"add[0]", &pb.SimulateRequest{Ring: "r", Add: []string{"a/b"}}},
		{"remove[0]", &pb.SimulateRequest{Ring: "r", Remove: []string{""}}},
		{"rename[0].from", &pb.SimulateRequest{Ring: "r", Rename: []*pb.Rename{{To: "a"}}}},
		{"rename[0].to", &pb.SimulateRequest{Ring: "r", Rename: []*pb.Rename{{From: "a"}}}},
	} {
		err := s.send(c.req)
		if bulk, ok := c.req.(*pb.LocateAllRequest); ok {
			require.NoError(t, err)

			e := s.ask([]*pb.LocateAllRequest{bulk})[0].GetError()
			require.EqualValues(t, codes.InvalidArgument, e.GetCode())
			require.Len(t, e.GetViolations(), 1)
			require.True(t, strings.HasPrefix(e.GetViolations()[0], c.field+": "), e)

			continue
		}
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%v: %v", c.req, err)
		require.Equal(t, c.field, violated(status.Convert(err)), "%v", c.req)
		require.Equal(t, "INVALID", reason(err))
	}
}

// send makes the call for the request.
func (s *server) send(request any) (err error) {
	switch req := request.(type) {
	case *pb.ListRingsRequest:
		_, err = s.ListRings(s.t.Context(), req)
	case *pb.GetRingRequest:
		_, err = s.GetRing(s.t.Context(), req)
	case *pb.WatchRingRequest:
		_, err = watch(s.t, s, req.GetName()).Recv()
	case *pb.LocateRequest:
		_, err = s.Locate(s.t.Context(), req)
	case *pb.ListAssignmentsRequest:
		_, err = s.ListAssignments(s.t.Context(), req)
	case *pb.SimulateRequest:
		_, err = s.Simulate(s.t.Context(), req)
	}

	return err
}
