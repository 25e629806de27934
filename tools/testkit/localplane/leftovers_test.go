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

	state := func(name string, owner int) string {
		dir := filepath.Join(temp, name+strconv.Itoa(owner)+"-1")
		require.NoError(t, os.Mkdir(dir, 0o700))

		return dir
	}
	orphan := state(temporaryPrefix, dead.Process.Pid)
	owned := state(temporaryPrefix, os.Getpid())
	foreign := state("foreign-", dead.Process.Pid)

	require.NoError(t, sweep())
	require.NoDirExists(t, orphan)
	require.DirExists(t, owned)
	require.DirExists(t, foreign)
}
