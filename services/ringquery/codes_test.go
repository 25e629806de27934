package ringquery_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery/api"
	"github.com/clusterring/clusterring/services/ringquery/rings"
	"github.com/clusterring/clusterring/services/ringquery/transport"
)

// TestClientsSeeEveryDocumentedCode lets a real server fail with every code that the .proto file documents, and with no
// other.
func TestClientsSeeEveryDocumentedCode(t *testing.T) {
	p := startProxy(t)
	s := startServer(t, "--kubeconfig", p.kubeconfig)
	s.grant()
	ring, ns := s.makeRing(configMaps())
	s.configMap(ns, "x", nil)
	s.configMap(ns, "y", nil)

	strict := startServer(t, "--authentication", "kubernetes")

	getRing := func(s pb.DiagnosticsServiceClient, ctx context.Context, name string) error {
		_, err := s.GetRing(ctx, &pb.GetRingRequest{Name: name})
		return err
	}
	watch := func(ctx context.Context) error {
		stream, err := s.WatchRing(ctx, &pb.WatchRingRequest{Name: ring})
		for err == nil {
			_, err = stream.Recv()
		}

		return err
	}

	documented := documentedCodes(t)

	service := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: contract.SystemNamespace,
		Name: "ringquery"}}

	for code, fail := range map[codes.Code]func() error{
		codes.InvalidArgument: func() error { return getRing(s, t.Context(), "No Name") },
		codes.Unauthenticated: func() error { return getRing(strict, t.Context(), ring) },
		codes.PermissionDenied: func() error {
			return getRing(strict, metadata.AppendToOutgoingContext(t.Context(), "authorization",
				"Bearer "+s.tokenOf(service, pb.TokenAudience)), ring)
		},
		codes.NotFound: func() error { return getRing(s, t.Context(), "no-such-ring") },
		codes.FailedPrecondition: func() error {
			_, err := s.Locate(t.Context(), &pb.LocateRequest{Ring: ring, Object: byKind("Pod", "default", "x")})
			return err
		},
		codes.Aborted: func() error {
			req := &pb.ListAssignmentsRequest{Ring: ring, Resource: "configmaps", Namespace: ns, PageSize: 1}
			first, err := s.ListAssignments(t.Context(), req)
			require.NoError(t, err)
			p.answer(http.StatusGone, expired)

			req.PageToken = first.GetNextPageToken()
			_, err = s.ListAssignments(t.Context(), req)

			return err
		},
		codes.ResourceExhausted: func() error { return getRing(s, t.Context(), strings.Repeat("x", 400<<10)) },
		codes.Unavailable: func() error {
			p.answer(http.StatusServiceUnavailable, `{}`)

			_, err := s.ListAssignments(t.Context(), &pb.ListAssignmentsRequest{Ring: ring, Resource: "configmaps"})

			return err
		},
		codes.Canceled: func() error {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()

			return watch(ctx)
		},
		codes.DeadlineExceeded: func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()

			return watch(ctx)
		},
		codes.Internal: func() error {
			logged := ""
			broken := &api.Service{
				Ready: func() error { return nil }, Rings: &rings.Rings{Reader: brokenReader{}},
				Log: funcr.New(func(_, args string) { logged += args }, funcr.Options{}),
			}
			err := getRing(pb.NewDiagnosticsServiceClient(serve(t, broken)), t.Context(), ring)
			require.NotContains(t, err.Error(), "broken", "clients do not get the cause")
			require.Contains(t, logged, "broken")

			return err
		},
	} {
		p.instead.Store(nil)

		err := fail()
		require.Equal(t, code, status.Code(err), err)
		require.Contains(t, documented, code)
		delete(documented, code)

		switch code {
		case codes.Canceled, codes.DeadlineExceeded, codes.Internal, codes.ResourceExhausted:
			require.Empty(t, reason(err), err)
		default:
			require.NotEmpty(t, reason(err), err)
		}
	}
	require.Empty(t, documented, "these are documented, and this test does not produce them")
}

func TestNothingIsAnsweredUntilReady(t *testing.T) {
	conn := serve(t, &api.Service{Ready: func() error { return errors.New("the caches are not filled yet") }})
	everyMethod(t, conn, func(method string, err error) {
		require.Equal(t, codes.Unavailable, status.Code(err), method)
		require.Equal(t, "NOT_READY", reason(err), method)
		require.ErrorContains(t, err, "the caches are not filled yet")
	})
}

// documentedCodes returns the codes in the comment of the service.
func documentedCodes(t *testing.T) map[codes.Code]bool {
	t.Helper()

	text, err := os.ReadFile("../../proto/clusterring/diagnostics/v1alpha1/diagnostics_service.proto")
	require.NoError(t, err)

	found := map[codes.Code]bool{}

	for _, line := range regexp.MustCompile(`(?m)^// {3}- ([A-Z_, ]+):`).FindAllStringSubmatch(string(text), -1) {
		for name := range strings.SplitSeq(line[1], ", ") {
			var code codes.Code
			require.NoError(t, code.UnmarshalJSON([]byte(`"`+name+`"`)), name)
			found[code] = true
		}
	}

	return found
}

// serve serves a service that is not in a command, and returns a connection to it.
func serve(t *testing.T, service *api.Service) *grpc.ClientConn {
	t.Helper()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)

	server := grpc.NewServer(grpc.StreamInterceptor(service.Stream))
	service.Register(transport.Streamed{ServiceRegistrar: server,
		Interceptors: []grpc.StreamServerInterceptor{service.Stream}})

	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()

	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		server.Stop()
		require.NoError(t, <-done)
	})

	return conn
}

// brokenReader is a cache that always fails.
type brokenReader struct{ client.Reader }

func (brokenReader) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("broken")
}

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
		req   proto.Message
	}{
		{"page_size", &pb.ListRingsRequest{PageSize: -1}},
		{"page_token", &pb.ListRingsRequest{PageToken: "?"}},
		{"name", &pb.GetRingRequest{}},
		{"name", &pb.GetRingRequest{Name: strings.Repeat("x", 64)}},
		{"name", &pb.WatchRingRequest{Name: "A"}},
		{"ring", &pb.ExplainRequest{Ring: "A", Object: byResource("configmaps", "default", "x")}},
		{"object", &pb.ExplainRequest{}},

		{"ring", &pb.LocateRequest{Ring: "A", Object: byResource("configmaps", "default", "x")}},
		{"object", &pb.LocateRequest{}},
		{"object", object(func(o *pb.ObjectReference) { o.Type = nil })},
		{"object.group", object(func(o *pb.ObjectReference) { o.Group = "a/b" })},
		{"object.kind", object(func(o *pb.ObjectReference) { o.Type = &pb.ObjectReference_Kind{Kind: "a b"} })},
		{"object.resource", object(func(o *pb.ObjectReference) { o.Type = &pb.ObjectReference_Resource{Resource: "A"} })},
		{"object.namespace", object(func(o *pb.ObjectReference) { o.Namespace = "A" })},
		{"object.name", object(func(o *pb.ObjectReference) { o.Name = "" })},
		{"object.name", object(func(o *pb.ObjectReference) { o.Name = ".." })},
		{"object.name", object(func(o *pb.ObjectReference) { o.Name = strings.Repeat("x", 254) })},
		{"owner", owner(func(o *pb.OwnerReference) { o.Type = nil })},
		{"owner.group", owner(func(o *pb.OwnerReference) { o.Group = "a/b" })},
		{"owner.kind", owner(func(o *pb.OwnerReference) { o.Type = &pb.OwnerReference_Kind{Kind: "a b"} })},
		{"owner.resource", owner(func(o *pb.OwnerReference) { o.Type = &pb.OwnerReference_Resource{Resource: "A"} })},
		{"owner.name", owner(func(o *pb.OwnerReference) { o.Name = "a/b" })},
		{"next_shards", &pb.LocateRequest{Object: byResource("configmaps", "default", "x"), NextShards: new(int32(-1))}},
		{"next_shards", &pb.LocateRequest{Object: byResource("configmaps", "default", "x"), NextShards: new(int32(11))}},

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
		{"page_token", assignments(func(r *pb.ListAssignmentsRequest) { r.PageToken = "c29tZS5yaW5n" })},

		{"ring", &pb.SimulateRequest{}},
		{"add", &pb.SimulateRequest{Ring: "r", Add: many}},
		{"remove", &pb.SimulateRequest{Ring: "r", Remove: many}},
		{"rename", &pb.SimulateRequest{Ring: "r", Rename: make([]*pb.Rename, 1001)}},
	} {
		if bulk, ok := c.req.(*pb.LocateAllRequest); ok {
			e := s.ask([]*pb.LocateAllRequest{bulk})[0].GetError()
			require.EqualValues(t, codes.InvalidArgument, e.GetCode())
			require.Len(t, e.GetViolations(), 1)
			require.True(t, strings.HasPrefix(e.GetViolations()[0], c.field+": "), e)

			continue
		}

		method := strings.TrimSuffix(string(c.req.ProtoReflect().Descriptor().Name()), "Request")
		err := s.conn.Invoke(t.Context(), "/"+pb.DiagnosticsService_ServiceDesc.ServiceName+"/"+method, c.req,
			&emptypb.Empty{})
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%v: %v", c.req, err)
		require.Equal(t, c.field, violated(status.Convert(err)), "%v", c.req)
		require.Equal(t, "INVALID", reason(err))
	}
}
