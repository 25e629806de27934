package localplane

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSweep removes what a dead owner left, and nothing else.
func TestSweep(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	dead := exec.CommandContext(t.Context(), "true")
	require.NoError(t, dead.Run())

	state := func(name, owner string) string {
		dir := filepath.Join(temp, name)
		require.NoError(t, os.Mkdir(dir, 0o700))

		if owner != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, ownerFile), []byte(owner), 0o600))
		}

		return dir
	}
	orphan := state(temporaryPrefix+"orphan", strconv.Itoa(dead.Process.Pid))
	owned := state(temporaryPrefix+"owned", strconv.Itoa(os.Getpid()))
	early := state(temporaryPrefix+"early", "")
	foreign := state("foreign", strconv.Itoa(dead.Process.Pid))

	require.NoError(t, sweep())
	require.NoDirExists(t, orphan)
	require.DirExists(t, owned)
	require.DirExists(t, early)
	require.DirExists(t, foreign)
}
