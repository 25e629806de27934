package command_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/command"
)

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
