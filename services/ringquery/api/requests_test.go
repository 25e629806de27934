package api

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// fields returns the fields that an error names.
func fields(t *testing.T, err error) (names []string) {
	t.Helper()

	if err == nil {
		return nil
	}

	var invalid rings.InvalidError
	require.ErrorAs(t, err, &invalid)

	for _, v := range invalid {
		require.NotEmpty(t, v.Description)
		names = append(names, v.Field)
	}

	return names
}

// assignments returns a valid request, modified by change.
func assignments(change func(*pb.ListAssignmentsRequest)) *pb.ListAssignmentsRequest {
	req := &pb.ListAssignmentsRequest{Ring: "example", Resource: "configmaps"}
	if change != nil {
		change(req)
	}

	return req
}

func TestAssignmentsQueries(t *testing.T) {
	q, err := assignmentsQuery(assignments(nil))
	require.NoError(t, err)
	require.EqualValues(t, 500, q.GetPageSize())

	q, err = assignmentsQuery(assignments(func(r *pb.ListAssignmentsRequest) {
		r.PageSize = 1 << 30
		r.States = []pb.AssignmentState{pb.AssignmentState_ASSIGNMENT_STATE_DRAINING,
			pb.AssignmentState_ASSIGNMENT_STATE_UNSPECIFIED}
	}))
	require.NoError(t, err)
	require.EqualValues(t, 5000, q.GetPageSize())
	require.Empty(t, q.GetStates(), "unspecified stands for every state")
}

// TestPageTokenIsForItsRequest changes each field of a request.
func TestPageTokenIsForItsRequest(t *testing.T) {
	first := assignments(func(r *pb.ListAssignmentsRequest) {
		r.States = []pb.AssignmentState{pb.AssignmentState_ASSIGNMENT_STATE_ASSIGNED}
	})
	token := digest(first) + "/where/to/go/on"

	q, err := assignmentsQuery(assignments(func(r *pb.ListAssignmentsRequest) {
		r.States, r.PageToken = first.GetStates(),
			token
	}))
	require.NoError(t, err)
	require.Equal(t, "where/to/go/on", q.GetPageToken())

	all := first.ProtoReflect().Descriptor().Fields()
	for name, change := range map[string]func(*pb.ListAssignmentsRequest){
		"ring":      func(r *pb.ListAssignmentsRequest) { r.Ring = "other" },
		"group":     func(r *pb.ListAssignmentsRequest) { r.Group = "apps" },
		"resource":  func(r *pb.ListAssignmentsRequest) { r.Resource = "secrets" },
		"namespace": func(r *pb.ListAssignmentsRequest) { r.Namespace = "default" },
		"shard":     func(r *pb.ListAssignmentsRequest) { r.Shard = "a" },
		"states":    func(r *pb.ListAssignmentsRequest) { r.States = nil },
		"page_size": func(r *pb.ListAssignmentsRequest) { r.PageSize = 1 },
	} {
		require.NotNil(t, all.ByName(protoreflect.Name(name)))

		_, err := assignmentsQuery(assignments(func(r *pb.ListAssignmentsRequest) {
			r.States, r.PageToken = first.GetStates(), token
			change(r)
		}))
		require.Equal(t, []string{"page_token"}, fields(t, err), name)
		require.ErrorContains(t, err, "another request")
	}
	require.Equal(t, 8, all.Len(), "a new field belongs into this test")
}

// For a new method, somebody must decide which ring its requests are about.
func TestRingOfEveryRequest(t *testing.T) {
	const ring, field = "example", protoreflect.Name("ring")

	about := map[protoreflect.Name]proto.Message{
		"ListRings":       nil, // all
		"GetRing":         &pb.GetRingRequest{Name: ring},
		"WatchRing":       &pb.WatchRingRequest{Name: ring},
		"Locate":          &pb.LocateRequest{Ring: ring},
		"LocateAll":       &pb.LocateAllRequest{Question: &pb.LocateRequest{Ring: ring}},
		"Explain":         &pb.ExplainRequest{Ring: ring},
		"ListAssignments": &pb.ListAssignmentsRequest{Ring: ring},
		"Simulate":        &pb.SimulateRequest{Ring: ring},
	}

	services := pb.File_clusterring_diagnostics_v1alpha1_diagnostics_service_proto.Services()

	methods := services.ByName("DiagnosticsService").Methods()
	for i := range methods.Len() {
		method := methods.Get(i)
		request, known := about[method.Name()]
		require.True(t, known, "%s is not in this table: say in RingOf which ring it is about", method.Name())

		kind, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
		require.NoError(t, err)
		require.Empty(t, RingOf(kind.New().Interface()), "%s: nothing is named", method.Name())

		if request != nil {
			require.Equal(t, method.Input().FullName(), request.ProtoReflect().Descriptor().FullName())
			require.Equal(t, ring, RingOf(request), method.Name())
		} else {
			require.Nil(t, method.Input().Fields().ByName(field))
		}
	}

	for _, name := range []string{"A", "../x", "a b", string(make([]byte, 300))} {
		require.Empty(t, RingOf(&pb.GetRingRequest{Name: name}), "there cannot be such a ring")
	}
}

// TestEveryErrorHasACode finds all sentinels of the package that provides the facts, and fails if one is not in the
// table.
func TestEveryErrorHasACode(t *testing.T) {
	table, err := os.ReadFile("service.go")
	require.NoError(t, err)
	files, err := filepath.Glob("../rings/*.go")
	require.NoError(t, err)

	found, sentinel := 0, regexp.MustCompile(`(?m)^(?:var |\t)(Err\w+) += errors\.New`)

	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)

		for _, name := range sentinel.FindAllStringSubmatch(string(source), -1) {
			// a request of this server's own making: a fault, unless a page token explains it
			if found++; name[1] == "ErrRejected" {
				continue
			}
			require.Contains(t, string(table), "{rings."+name[1]+", codes.", "it has no status code")
		}
	}
	require.Greater(t, found, 10)
}

// TestErrorThatIsAStatusStaysAsItIs covers the error with which a stream has ended.
func TestErrorThatIsAStatusStaysAsItIs(t *testing.T) {
	st := (&Service{}).statusOf(t.Context(), fmt.Errorf("send: %w",
		status.Error(codes.Unavailable, "transport is closing")))
	require.Equal(t, codes.Unavailable, st.Code())
}
