package development_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/clusterring/clusterring/tools/e2e/development"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestCopy: tracked files are copied as they are on disk; what is not tracked, or gone, is not.
func TestCopy(t *testing.T) {
	root, to := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	write := func(name, content string, mode os.FileMode) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(content), mode))
	}
	write("services/a b.go", "first", 0o644)
	write("run", "program", 0o755)
	write("gone", "", 0o644)

	for _, args := range [][]string{{"init", "--quiet"}, {"add", "."}, {"commit", "--quiet", "-m", "first"}} {
		args = append([]string{"-C", root, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)
		output, err := exec.CommandContext(t.Context(), "git", args...).CombinedOutput()
		require.NoError(t, err, string(output))
	}
	write("services/a b.go", "edited", 0o644)
	write("notes", "mine", 0o644)
	require.NoError(t, os.Remove(filepath.Join(root, "gone")))

	require.NoError(t, development.Copy(t.Context(), root, to))

	content, err := os.ReadFile(filepath.Join(to, "services/a b.go"))
	require.NoError(t, err)
	assert.Equal(t, "edited", string(content))

	info, err := os.Stat(filepath.Join(to, "run"))
	require.NoError(t, err)
	assert.NotZero(t, info.Mode()&0o100, "it is executable")
	assert.NoFileExists(t, filepath.Join(to, "notes"))
	assert.NoFileExists(t, filepath.Join(to, "gone"))
}

// skaffold returns a program in place of skaffold, which runs the script.
func skaffold(t *testing.T, script string) development.Skaffold {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "skaffold")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n"+script), 0o755))

	return development.Skaffold{Program: program, Dir: dir, Repository: "registry.example.com/x",
		Cache: filepath.Join(dir, "cache")}
}

func TestSession(t *testing.T) {
	s := skaffold(t, `trap 'echo Cleaned up; exit 0' INT
echo "$@"
echo Watching for changes...
while [ ! -e edit ]; do sleep 0.05; done
echo Watching for changes...
while :; do sleep 0.05; done`)
	session, err := s.Start(t.Context(), "-p", "development")
	require.NoError(t, err)

	eventually := func(times int) {
		require.Eventually(t, func() bool { return session.Watching(times) == nil }, time.Minute, 10*time.Millisecond)
	}
	eventually(1)
	require.ErrorContains(t, session.Watching(2), "has deployed 1 times, not 2; last output: dev -p development")
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "edit"), nil, 0o600))
	eventually(2)

	require.NoError(t, session.Interrupt())
	assert.Contains(t, session.Output.String(), "Cleaned up")
	require.ErrorIs(t, session.Watching(1), development.ErrEnded)
	require.NoError(t, session.Interrupt(), "a second time")
}
