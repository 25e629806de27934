package command_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/command"
)

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
