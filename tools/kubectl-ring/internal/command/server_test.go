package command_test

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	testclock "k8s.io/utils/clock/testing"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/command"
	"github.com/clusterring/clusterring/tools/testkit/output"
)

// now is the time in all tests.
var now = time.Date(2030, 1, 2, 12, 0, 0, 0, time.UTC)

// server implements the API with fixed answers.
type server struct {
	pb.UnimplementedDiagnosticsServiceServer

	address string
	// watch implements WatchRing.
	watch func(stream pb.DiagnosticsService_WatchRingServer) error
	// beforePage, if set, is called before a page of assignments is sent, with its number from 0.
	beforePage func(number int)
	// failing, if set, returns the error to answer instead, or nil.
	failing func(req any) error
	// simulation, if set, is the answer to Simulate.
	simulation *pb.SimulateResponse

	mu          sync.Mutex
	tokens      []string
	assignments []*pb.ListAssignmentsRequest
	located     []*pb.LocateRequest
	simulated   []*pb.SimulateRequest
}

// serve starts a server on this machine.
func serve(t *testing.T) *server {
	t.Helper()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)

	s := &server{address: listener.Addr().String()}
	record := func(ctx context.Context) {
		s.mu.Lock()
		defer s.mu.Unlock()

		s.tokens = append(s.tokens, strings.Join(metadata.ValueFromIncomingContext(ctx, "authorization"), ","))
	}
	g := grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any,
			error) {
			record(ctx)

			if s.failing != nil {
				if err := s.failing(req); err != nil {
					return nil, err
				}
			}

			return handle(ctx, req)
		}),
	)
	pb.RegisterDiagnosticsServiceServer(g, s)

	done := make(chan error, 1)
	go func() { done <- g.Serve(listener) }()

	t.Cleanup(func() {
		g.Stop()
		require.NoError(t, <-done)
	})

	return s
}

// refuse returns a status with details.
func refuse(code codes.Code, message string, details ...protoadapt.MessageV1) error {
	st, err := status.New(code, message).WithDetails(details...)
	if err != nil {
		return err
	}

	return st.Err()
}

func reason(word string) *errdetails.ErrorInfo {
	return &errdetails.ErrorInfo{Reason: word, Domain: "clusterring.timebertt.dev"}
}

func ago(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-d)) }

func ringExample() *pb.Ring {
	return &pb.Ring{
		Name: "example",
		Resources: []*pb.RingResource{
			{Group: "example.clusterring.dev", Resource: "websites", Role: pb.Role_ROLE_MAIN, Kind: "Website"},
			{Resource: "configmaps", Role: pb.Role_ROLE_CONTROLLED, Kind: "ConfigMap"},
		},
		NamespaceSelector: "team in (a,b)",
		Shards:            3, AvailableShards: 2, Fingerprint: "0123456789abcdef",
		Conditions: []*pb.Condition{
			{
				Type: "Assigned", Status: "False", Reason: "Moving", Message: "12 objects move\n\x1b[31mred",
				LastTransitionTime: ago(time.Minute),
			},
			{Type: "Ready", Status: "True", Reason: "Ready", LastTransitionTime: ago(time.Hour)},
		},
		CreateTime: ago(50 * time.Hour),
	}
}

func shards() []*pb.Shard {
	return []*pb.Shard{
		{
			Name: "shard-1", Namespace: "websites", Holder: "shard-1", State: pb.ShardState_SHARD_STATE_READY, Available: true,
			LeaseDuration: durationpb.New(15 * time.Second), Partitions: 8192, Share: 0.5,
			RenewalAge: durationpb.New(3200 * time.Millisecond),
		},
		{
			Name: "shard-2", Namespace: "websites", Holder: "shard-2", State: pb.ShardState_SHARD_STATE_EXPIRED, Available: true,
			LeaseDuration: durationpb.New(15 * time.Second), Partitions: 8192, Share: 0.5,
			RenewalAge: durationpb.New(20 * time.Second), AgeIsLowerBound: true,
		},
		{
			Name: "shard-3", Namespace: "websites", Holder: "shardlease-controller", State: pb.ShardState_SHARD_STATE_DEAD,
			LeaseDuration: durationpb.New(15 * time.Second), RenewalAge: durationpb.New(5 * time.Minute),
		},
	}
}

func (s *server) ListRings(_ context.Context, req *pb.ListRingsRequest) (*pb.ListRingsResponse, error) {
	if req.GetPageToken() == "" {
		return &pb.ListRingsResponse{Rings: []*pb.Ring{ringExample()}, NextPageToken: "more"}, nil
	}

	return &pb.ListRingsResponse{Rings: []*pb.Ring{{
		Name: "leaving", Resources: []*pb.RingResource{{
			Group: "apps", Resource: "deployments", Role: pb.Role_ROLE_MAIN, Kind: "Deployment",
		}},
		Fingerprint: "fedcba9876543210", CreateTime: ago(time.Minute), Deleting: true,
	}}}, nil
}

func (s *server) GetRing(_ context.Context, req *pb.GetRingRequest) (*pb.GetRingResponse, error) {
	switch req.GetName() {
	case "example":
		return &pb.GetRingResponse{Ring: ringExample(), Shards: shards()}, nil
	case "tenants":
		return tenants(req.GetCountObjects()), nil
	case "leaving":
		res, err := s.ListRings(context.Background(), &pb.ListRingsRequest{PageToken: "more"})
		return &pb.GetRingResponse{Ring: res.GetRings()[0]}, err
	case "released":
		return &pb.GetRingResponse{Ring: &pb.Ring{Name: "released", Deleting: true, Conditions: []*pb.Condition{{
			Type: "Assigned", Status: "False", Reason: "Deleting", LastTransitionTime: ago(time.Minute),
			Message: "the ring is being deleted: objects with its labels, as far as is known: 2 (2 " +
				"websites.example.clusterring.dev)",
		}}}}, nil
	case "inactive":
		return inactive(), nil
	case "secret":
		return nil, refuse(codes.PermissionDenied, `user "eve" may not get clusterrings/diagnostics "secret"`,
			reason("PERMISSION_DENIED"))
	case "private":
		return nil, refuse(codes.Unauthenticated, "there is no token and no certificate", reason("UNAUTHENTICATED"))
	case "slow":
		return nil, refuse(codes.Unavailable, "the server has not seen all Leases yet", reason("NOT_READY"))
	default:
		return nil, refuse(codes.NotFound, "there is no ring "+req.GetName(), reason("RING_NOT_FOUND"))
	}
}

// inactive returns a ring with one active shard, beside one that takes over if that is lost, one that stops, and shards
// that have stopped by themselves or were lost.
func inactive() *pb.GetRingResponse {
	const ready, dead, orphaned = pb.ShardState_SHARD_STATE_READY, pb.ShardState_SHARD_STATE_DEAD,
		pb.ShardState_SHARD_STATE_ORPHANED

	ring := ringExample()
	ring.Name, ring.Conditions, ring.Shards, ring.AvailableShards = "inactive", nil, 7, 1
	res := &pb.GetRingResponse{Ring: ring, Shards: []*pb.Shard{
		{Name: "active", Holder: "active", State: ready, Available: true, Partitions: 16384, Share: 1},
		{Name: "inactive", Holder: "inactive", State: ready, Standby: true},
		{Name: "stops", Holder: "stops", State: ready, Stopping: true},
		{Name: "stopped", State: dead}, {Name: "stopped-long-ago", State: orphaned},
		{Name: "lost", Holder: "shardlease-controller", State: dead},
		{Name: "lost-long-ago", Holder: "shardlease-controller", State: orphaned},
	}}

	return res
}

// tenants returns a ring whose objects belong together by a label.
func tenants(counted bool) *pb.GetRingResponse {
	ring := ringExample()
	ring.Name, ring.Conditions = "tenants", nil
	ring.Resources[0].KeyType, ring.Resources[0].KeyLabel = pb.KeyType_KEY_TYPE_LABEL, "example.com/tenant"
	ring.Resources = append(ring.Resources, &pb.RingResource{
		Resource: "secrets", Role: pb.Role_ROLE_MAIN, KeyType: pb.KeyType_KEY_TYPE_NAMESPACE,
	})
	res := &pb.GetRingResponse{Ring: ring, Shards: shards()}

	if !counted {
		return res
	}

	res.Loads = []*pb.ShardLoad{
		{
			Shard: "shard-1", Objects: 220, Keys: 12, LargestKeyObjects: 190,
			LargestKey: &pb.PartitionKey{
				Group: "example.com", Namespace: "tenant", Name: "acme", Type: pb.KeyType_KEY_TYPE_LABEL,
			},
		},
		{
			Shard: "shard-2", Objects: 110, Keys: 30, LargestKeyObjects: 9,
			LargestKey: &pb.PartitionKey{Kind: "Namespace", Name: "team-a", Type: pb.KeyType_KEY_TYPE_NAMESPACE},
		},
	}
	res.Counted = []*pb.CountedResource{
		{Group: "example.clusterring.dev", Resource: "websites", Objects: 300, Keyless: 4},
		{Resource: "secrets", Objects: 30, Problem: "this server may not list secrets"},
	}
	res.KeysLimited = true

	return res
}

func (s *server) Locate(_ context.Context, req *pb.LocateRequest) (*pb.LocateResponse, error) {
	s.mu.Lock()
	s.located = append(s.located, req)
	s.mu.Unlock()

	object := req.GetObject()
	switch object.GetName() {
	case "BAD":
		return nil, refuse(codes.InvalidArgument, "the object is malformed", reason("INVALID"), &errdetails.BadRequest{
			FieldViolations: []*errdetails.BadRequest_FieldViolation{
				{Field: "object.name", Description: "must be a DNS name"},
				{Field: "next_shards", Description: "must be from 0 to 10"},
			},
		})
	case "orphan":
		return nil, refuse(codes.FailedPrecondition, "owner needed: in ring example, configmaps are where their owners are",
			reason("OWNER_NEEDED"))
	case "nowhere":
		return &pb.LocateResponse{Locations: []*pb.Location{{
			Ring: "leaving", Role: pb.Role_ROLE_MAIN, NamespaceCoverage: pb.NamespaceCoverage_NAMESPACE_COVERAGE_UNKNOWN,
			PartitionKey: &pb.PartitionKey{Group: "apps", Kind: "Deployment", Namespace: "default", Name: "nowhere"},
		}}}, nil
	}

	at := &pb.Location{
		Ring: "example", Role: pb.Role_ROLE_MAIN, NamespaceCoverage: pb.NamespaceCoverage_NAMESPACE_COVERAGE_COVERED,
		PartitionKey: &pb.PartitionKey{
			Group: "example.clusterring.dev", Kind: "Website", Namespace: object.GetNamespace(), Name: object.GetName(),
		},
		Hash: 1234567890, Partition: 9418, Shard: "shard-1", NextShards: []string{"shard-2"},
		Fingerprint: "0123456789abcdef",
	}
	if req.GetOwner() != nil {
		at.Role, at.PartitionKey.Name = pb.Role_ROLE_CONTROLLED, req.GetOwner().GetName()
	}

	return &pb.LocateResponse{Locations: []*pb.Location{at}}, nil
}

func (s *server) Explain(_ context.Context, req *pb.ExplainRequest) (*pb.ExplainResponse, error) {
	object := req.GetObject()
	switch object.GetName() {
	case "gone":
		return nil, refuse(codes.NotFound, "websites default/gone does not exist", reason("OBJECT_NOT_FOUND"))
	case "fine":
		return &pb.ExplainResponse{
			Object: &pb.ExplainedObject{
				Group: object.GetGroup(), Resource: "websites", Kind: "Website", Namespace: object.GetNamespace(), Name: "fine",
				Uid:   "u",
				Found: pb.Found_FOUND_YES, CreateTime: ago(time.Hour),
			},
			Findings: []*pb.Finding{{
				Severity: pb.Severity_SEVERITY_INFO, Reason: "ASSIGNED", Ring: "example",
				Message: "It is at shard-1, where it belongs.",
			}},
			Healthy: true,
		}, nil
	}

	if object.GetName() == "both" {
		return &pb.ExplainResponse{
			Object: &pb.ExplainedObject{Resource: "websites", Kind: "Website", Name: "both", Found: pb.Found_FOUND_FORBIDDEN},
			Findings: []*pb.Finding{
				{Severity: pb.Severity_SEVERITY_INFO, Reason: "ASSIGNED", Ring: "a", Message: "It is at shard-1."},
				{Severity: pb.Severity_SEVERITY_WARNING, Reason: "UNREAD", Message: "It was not read."},
				{Severity: pb.Severity_SEVERITY_INFO, Reason: "ASSIGNED", Ring: "b", Message: "It is at shard-2."},
			},
		}, nil
	}

	return &pb.ExplainResponse{
		Object: &pb.ExplainedObject{
			Resource: "configmaps", Kind: "ConfigMap", Namespace: object.GetNamespace(), Name: object.GetName(), Uid: "u",
			Found: pb.Found_FOUND_YES, CreateTime: ago(3 * time.Hour), Deleting: true, Controller: "Website/blog",
		},
		Rings: []*pb.RingExplanation{{
			Ring: "example", Role: pb.Role_ROLE_CONTROLLED, Covered: true,
			Assignment: &pb.Assignment{
				Namespace: object.GetNamespace(), Name: object.GetName(), Shard: "shard-3", DesiredShard: "shard-1",
				State: pb.AssignmentState_ASSIGNMENT_STATE_DEAD_SHARD, DrainTime: ago(90 * time.Second),
			},
			Location: &pb.Location{
				Ring: "example", PartitionKey: &pb.PartitionKey{
					Group: "example.clusterring.dev", Kind: "Website", Namespace: "default", Name: "blog",
				},
				Hash: 1234567890, Partition: 9418, Shard: "shard-1", NextShards: []string{"shard-2"},
				Fingerprint: "0123456789abcdef",
			},
			ActualShard: shards()[2], DesiredShard: shards()[0],
			Owner: &pb.ExplainedOwner{
				Resource: "websites.example.clusterring.dev", Namespace: "default", Name: "blog", Found: pb.Found_FOUND_YES,
				Shard: "shard-1",
			},
			Next: pb.NextStep_NEXT_STEP_TAKE_OVER, NextActor: "rebalancer",
		}},
		Findings: []*pb.Finding{
			{
				Severity: pb.Severity_SEVERITY_ERROR, Reason: "SHARD_DEAD", Ring: "example",
				Message: "It is at shard-3, which is dead: nobody works on it.", Advice: "See that the rebalancer runs.",
			},
			{Severity: pb.Severity_SEVERITY_WARNING, Reason: "DELETING", Message: "It is being deleted."},
			{Severity: pb.Severity_SEVERITY_INFO, Reason: "OWNER", Ring: "example", Message: "Its owner is at shard-1."},
			{Severity: 9, Reason: "NEW", Message: "Something that this program does not know."},
		},
	}, nil
}

func (s *server) ListAssignments(
	_ context.Context, req *pb.ListAssignmentsRequest,
) (*pb.ListAssignmentsResponse, error) {
	s.mu.Lock()
	s.assignments = append(s.assignments, req)
	s.mu.Unlock()

	if req.GetResource() == "configmaps" {
		return &pb.ListAssignmentsResponse{Fingerprint: "0123456789abcdef", Assignments: []*pb.Assignment{{
			Namespace: "a", Name: "blog-with-a-name-that-is-longer", Shard: "shard-1", DesiredShard: "shard-1",
			State: pb.AssignmentState_ASSIGNMENT_STATE_ASSIGNED, Owner: "Website/blog",
		}}}, nil
	}

	pages := [][]*pb.Assignment{
		{
			{
				Namespace: "a", Name: "blog", Shard: "shard-1", DesiredShard: "shard-1",
				State: pb.AssignmentState_ASSIGNMENT_STATE_ASSIGNED,
			},
			{
				Namespace: "a", Name: "shop", Shard: "shard-3", DesiredShard: "shard-1",
				State: pb.AssignmentState_ASSIGNMENT_STATE_DEAD_SHARD,
			},
		},
		{}, // a page without a match is not the last
		{
			{
				Namespace: "b", Name: "wiki", Shard: "shard-1", DesiredShard: "shard-2",
				State: pb.AssignmentState_ASSIGNMENT_STATE_DRAINING, DrainTime: ago(2 * time.Minute),
			},
			{Namespace: "b", Name: "zoo", DesiredShard: "shard-2", State: pb.AssignmentState_ASSIGNMENT_STATE_UNASSIGNED},
		},
	}

	number := len(req.GetPageToken()) // a token is a row of x, one for each page
	if s.beforePage != nil {
		s.beforePage(number)
	}

	if req.GetShard() == "expired" && number > 0 {
		return nil, refuse(codes.Aborted, "the page token has expired", reason("PAGE_EXPIRED"))
	}

	if req.GetShard() == "none" {
		return &pb.ListAssignmentsResponse{}, nil
	}

	res := &pb.ListAssignmentsResponse{Assignments: pages[number], Fingerprint: "0123456789abcdef"}
	if number < len(pages)-1 {
		res.NextPageToken = req.GetPageToken() + "x"
	}

	return res, nil
}

func (s *server) Simulate(_ context.Context, req *pb.SimulateRequest) (*pb.SimulateResponse, error) {
	s.mu.Lock()
	s.simulated = append(s.simulated, req)
	s.mu.Unlock()

	if s.simulation != nil {
		return s.simulation, nil
	}

	res := &pb.SimulateResponse{
		Shards: []*pb.SimulatedShard{
			{Name: "new-1", PartitionsAfter: 5461, ShareAfter: 0.3333},
			{Name: "shard-1", PartitionsBefore: 8192, PartitionsAfter: 5462, ShareBefore: 0.5, ShareAfter: 0.3334},
			{Name: "shard-2", PartitionsBefore: 8192, ShareBefore: 0.5},
			{Name: "shard-9", PartitionsAfter: 5461, ShareAfter: 0.3333},
		},
		Moved: 0.667, Least: 0.6667, FingerprintBefore: "0123456789abcdef", FingerprintAfter: "00000000deadbeef",
	}
	if len(req.GetRemove()) > 1 { // all
		res = &pb.SimulateResponse{Shards: res.GetShards()[1:3]}
		res.Shards[0].PartitionsAfter, res.Shards[0].ShareAfter = 0, 0
	}

	if req.GetCountObjects() {
		for i, shard := range res.GetShards() {
			shard.ObjectsBefore, shard.ObjectsAfter = int64(100*i), int64(50*(i+1))
		}

		res.Counted = []*pb.CountedResource{
			{Group: "example.clusterring.dev", Resource: "websites", Objects: 500, Moved: 333},
			{Resource: "secrets", Problem: "ringquery may not list secrets"},
		}
	}

	return res, nil
}

func (s *server) WatchRing(_ *pb.WatchRingRequest, stream pb.DiagnosticsService_WatchRingServer) error {
	return s.watch(stream)
}

// program is the program in a process without a kubeconfig.
type program struct {
	t        *testing.T
	terminal bool
	env      map[string]string
	clock    *testclock.FakeClock
	out, err output.Buffer
}

func newProgram(t *testing.T) *program {
	t.Helper()
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))

	return &program{t: t, clock: testclock.NewFakeClock(now)}
}

// run runs it and returns the exit code.
func (p *program) run(ctx context.Context, args ...string) int {
	return command.Run(ctx, args, command.Streams{
		Out: &p.out, Err: &p.err, OutTerminal: p.terminal,
		Getenv: func(name string) string { return p.env[name] }, Clock: p.clock,
	})
}

// at adds the flags for the server.
func (s *server) at(args ...string) []string {
	return append(args, "--endpoint", s.address, "--plaintext")
}
