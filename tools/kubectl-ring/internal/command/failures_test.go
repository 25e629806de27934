package command_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/command"
)

// invalid refuses one field of a request.
func invalid(field, description string) error {
	return refuse(codes.InvalidArgument, field+" "+description, reason("INVALID"), &errdetails.BadRequest{
		FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: field, Description: description}},
	})
}

// failWebsites answers queries for the assignments of websites, which is the first resource, with an error.
func (s *server) failWebsites(err error) {
	s.failing = func(req any) error {
		if list, ok := req.(*pb.ListAssignmentsRequest); ok && list.GetResource() == "websites" {
			return err
		}

		return nil
	}
}

// TestAssignmentsOfOtherResources verifies that a resource that cannot be listed does not hide those after it.
func TestAssignmentsOfOtherResources(t *testing.T) {
	s := serve(t)
	s.failWebsites(refuse(codes.FailedPrecondition, "this server may not list websites", reason("NOT_READABLE")))

	p := newProgram(t)
	require.Equal(t, command.NoAnswer, p.run(t.Context(), s.at("assignments", "example")...))
	require.Contains(t, p.out.String(), "blog-with-a-name-that-is-longer")
	require.Contains(t, p.err.String(), "error: websites.example.clusterring.dev: this server may not list websites\n"+
		"  asked: "+s.address+" without TLS, which answered FailedPrecondition (NOT_READABLE)\n  to do: allow ringquery to "+
		"read it")
	require.Equal(t, 1, strings.Count(p.err.String(), "error:"))

	p = newProgram(t)
	require.Equal(t, command.NoAnswer, p.run(t.Context(), s.at("assignments", "example", "-o", "name")...))
	require.Equal(t, "configmaps/blog-with-a-name-that-is-longer\n", p.out.String())

	p = newProgram(t)
	require.Equal(t, command.NoAnswer, p.run(t.Context(), s.at("assignments", "example", "websites")...))
	require.Contains(t, p.err.String(), "error: this server may not list websites\n", "only one resource is meant")

	for _, code := range []codes.Code{codes.Unavailable, codes.Unauthenticated, codes.Canceled} {
		s.failWebsites(refuse(code, "nobody can ask now"))

		p = newProgram(t)
		require.Equal(t, command.NoAnswer, p.run(t.Context(), s.at("assignments", "example")...))
		require.Empty(t, p.out.String())
		require.Contains(t, p.err.String(), "error: nobody can ask now\n", "%s is not about one resource", code)
	}
}

// TestAssignmentsOfANamespace verifies that resources without namespaces are skipped with -n, and no other resource is.
func TestAssignmentsOfANamespace(t *testing.T) {
	s := serve(t)
	clusterScoped := invalid("namespace", "must be empty: websites.example.clusterring.dev are cluster-scoped")

	s.failWebsites(clusterScoped)

	p := newProgram(t)
	require.Equal(t, command.Fine, p.run(t.Context(), s.at("assignments", "example", "-n", "a")...), p.err.String())
	require.Contains(t, p.out.String(), "blog-with-a-name-that-is-longer")
	require.Empty(t, p.err.String())

	p = newProgram(t)
	require.Equal(t, command.NoAnswer, p.run(t.Context(), s.at("assignments", "example", "websites", "-n", "a")...))
	require.Contains(t, p.err.String(), "namespace: must be empty")

	s.failing = func(req any) error {
		if _, ok := req.(*pb.ListAssignmentsRequest); ok {
			return clusterScoped
		}

		return nil
	}
	p = newProgram(t)
	require.Equal(t, command.NoAnswer, p.run(t.Context(), s.at("assignments", "example", "-n", "a")...))
	require.Contains(t, p.err.String(), "namespace: must be empty", "no resource has namespaces")

	for name, c := range map[string]struct {
		namespace string
		err       error
	}{
		"malformed namespace": {"a.b", invalid("namespace", "must be a DNS label")},
		"another field":       {"a", invalid("page_token", "must be the next_page_token of an earlier answer")},
		"no detail":           {"a", refuse(codes.InvalidArgument, "namespace must be empty")},
		"no namespace":        {"", clusterScoped},
	} {
		t.Run(name, func(t *testing.T) {
			s.failWebsites(c.err)

			p := newProgram(t)
			require.Equal(t, command.NoAnswer, p.run(t.Context(), s.at("assignments", "example", "-n", c.namespace)...))
			require.Contains(t, p.err.String(), "error: websites.example.clusterring.dev: ")
			require.Contains(t, p.out.String(), "blog-with-a-name-that-is-longer")
		})
	}
}

// TestGetWithoutNumbers verifies that a ring is shown although its objects cannot be counted, unless that was asked
// for.
func TestGetWithoutNumbers(t *testing.T) {
	s := serve(t)
	s.failing = func(req any) error {
		switch req := req.(type) {
		case *pb.ListRingsRequest:
			return nil
		case *pb.GetRingRequest:
			if req.GetCountObjects() {
				return refuse(codes.ResourceExhausted, "too many objects are counted now", reason("TOO_MANY"))
			}
		}

		return nil
	}

	plain, counted := newProgram(t), newProgram(t)
	require.Equal(t, command.Fine, plain.run(t.Context(), s.at("get", "tenants", "--count-objects=false")...))
	require.Empty(t, plain.err.String())
	require.Equal(t, command.Fine, counted.run(t.Context(), s.at("get", "tenants")...), counted.err.String())
	require.Equal(t, plain.out.String(), counted.out.String())
	require.Equal(t, "warning: ring tenants is shown without numbers of objects (--count-objects=false omits them): "+
		"too many objects are counted now: request less at a time: a smaller --chunk-size or fewer objects\n",
		counted.err.String())

	p := newProgram(t)
	require.Equal(t, command.NoAnswer, p.run(t.Context(), s.at("get", "tenants", "--count-objects")...))
	require.Empty(t, p.out.String())
	require.Contains(t, p.err.String(), "error: too many objects are counted now")
}

// TestWatchTellsProgramsWhoChangedMeanwhile verifies that shards that join or leave while there is no connection are in
// the next message.
func TestWatchTellsProgramsWhoChangedMeanwhile(t *testing.T) {
	s := serve(t)
	ready, dead := pb.ShardState_SHARD_STATE_READY, pb.ShardState_SHARD_STATE_DEAD
	streams := [][]*pb.WatchRingResponse{
		{watched(0, "1111111111111111", ready), watched(1, "1111111111111111", ready)},
		{watched(0, "2222222222222222", dead)}, {watched(0, "1111111111111111", ready)},
		{watched(0, "1111111111111111", ready)},
	}
	streams[0][1].Joined = []string{"as the server tells"}
	s.watch = func(stream pb.DiagnosticsService_WatchRingServer) error {
		if len(streams) == 0 {
			return refuse(codes.NotFound, "ring example is gone", reason("RING_NOT_FOUND"))
		}

		now := streams[0]
		streams = streams[1:]

		for _, message := range now {
			if err := stream.Send(message); err != nil {
				return err
			}
		}

		return refuse(codes.Unavailable, "the server is about to stop", reason("STOPPING"))
	}

	p := newProgram(t)
	require.Equal(t, command.NoAnswer, p.runStepping(t.Context(), s.at("watch", "example", "-o", "json")...))

	var got []string

	for line := range strings.Lines(p.out.String()) {
		var message struct{ Joined, Left []string }
		require.NoError(t, json.Unmarshal([]byte(line), &message))
		got = append(got, "+"+strings.Join(message.Joined, ",")+" -"+strings.Join(message.Left, ","))
	}

	require.Equal(t, []string{"+ -", "+as the server tells -", "+ -shard-2", "+shard-2 -", "+ -"}, got)
}

// TestEnvironment verifies that variables set the flags about the server, and the command line wins.
func TestEnvironment(t *testing.T) {
	s := serve(t)

	p := newProgram(t)
	p.env = map[string]string{"KUBECTL_RING_ENDPOINT": s.address, "KUBECTL_RING_PLAINTEXT": "true"}
	require.Equal(t, command.Fine, p.run(t.Context(), "list", "-o", "name"), p.err.String())
	require.Contains(t, p.out.String(), "example")

	p = newProgram(t)
	p.env = map[string]string{"KUBECTL_RING_ENDPOINT": s.address, "KUBECTL_RING_PLAINTEXT": "true"}
	require.Equal(t, command.Fine, p.run(t.Context(), "__completeNoDesc", "get", ""))
	require.Equal(t, "example\nleaving\n:4\n", p.out.String(), p.err.String())

	p = newProgram(t)
	p.env = map[string]string{"KUBECTL_RING_ENDPOINT": "127.0.0.1:1"}
	require.Equal(t, command.Fine, p.run(t.Context(), "list", "--endpoint", s.address, "--plaintext"), p.err.String())

	p = newProgram(t)
	p.env = map[string]string{"KUBECTL_RING_PLAINTEXT": "perhaps"}
	require.Equal(t, command.NoAnswer, p.run(t.Context(), "list"))
	require.Contains(t, p.err.String(), "KUBECTL_RING_PLAINTEXT")
	require.Contains(t, p.err.String(), "to do: correct or unset the variable")

	// No variable turns off the verification of the server.
	p = newProgram(t)
	p.env = map[string]string{"KUBECTL_RING_ENDPOINT": s.address, "KUBECTL_RING_INSECURE_SKIP_TLS_VERIFY": "true"}
	require.Equal(t, command.NoAnswer, p.run(t.Context(), "list"))
}

func TestVersionFlag(t *testing.T) {
	p, q := newProgram(t), newProgram(t)
	require.Equal(t, command.Fine, p.run(t.Context(), "--version"))
	require.Equal(t, command.Fine, q.run(t.Context(), "version"))
	require.Equal(t, q.out.String(), p.out.String())
}
