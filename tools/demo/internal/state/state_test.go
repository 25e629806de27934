package state_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/clusterring/clusterring/tools/demo/internal/state"
)

// TestMain makes this binary play a demo, or a process of one, by its first argument.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "demo":
			if err := playDemo(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		case "part":
			waiting := make(chan os.Signal, 1)
			signal.Notify(waiting) // without a handler, the runtime ends a process that waits for nothing: it is a deadlock
			<-waiting
		}
	}
	goleak.VerifyTestMain(m)
}

// playDemo claims a state directory, which its own arguments do not name, starts a process that does, and waits to be
// told to stop.
func playDemo() error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)

	dir, release, err := state.Claim("")
	if err == nil {
		err = exec.Command(os.Args[0], "part", "--data="+filepath.Join(dir, "etcd")).Start()
	}

	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "ready")
	<-signals

	return errors.Join(state.Discard(context.Background(), dir), release())
}

// naming returns the ids of the processes that name the directory in their arguments.
func naming(t *testing.T, dir string) []int {
	t.Helper()

	out, err := exec.Command("ps", "-axo", "pid=,args=").Output()
	require.NoError(t, err)

	var pids []int

	for line := range strings.Lines(string(out)) {
		if pid, err := strconv.Atoi(strings.Fields(line)[0]); err == nil && strings.Contains(line, dir+"/") {
			pids = append(pids, pid)
		}
	}

	return pids
}

// TestRemove removes demos of every sort, in a directory for temporary files that is empty at first and afterwards.
func TestRemove(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)

	// theDemo returns the one that there is.
	theDemo := func() (dir string, pid int) {
		dirs, err := state.Dirs()
		require.NoError(t, err)
		require.Len(t, dirs, 1)
		pid, err = state.Running(dirs[0])
		require.NoError(t, err)

		return dirs[0], pid
	}
	play := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0], "demo")
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())

		_, err = out.Read(make([]byte, 1))
		require.NoError(t, err)

		return cmd
	}
	remove := func(dir string) {
		require.NoError(t, state.Remove(t.Context(), dir))
		require.Empty(t, naming(t, dir))

		entries, err := os.ReadDir(temp)
		require.NoError(t, err)
		require.Empty(t, entries)
	}

	cmd := play()
	dir, pid := theDemo()
	require.Equal(t, cmd.Process.Pid, pid)
	remove(dir)
	require.NoError(t, cmd.Wait(), "it was asked, not killed")

	cmd = play()
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())

	dir, pid = theDemo()
	require.Zero(t, pid)
	require.NotEmpty(t, naming(t, dir), "its process lives on")
	remove(dir)

	up, release, err := state.Claim(state.UpDir())
	require.NoError(t, err)
	_, _, err = state.Claim(state.UpDir())
	require.ErrorIs(t, err, os.ErrExist, "there is one such demo at a time")

	dir, pid = theDemo()
	require.Equal(t, up, dir)
	require.Equal(t, os.Getpid(), pid)
	require.NoError(t, release())

	dir, pid = theDemo()
	require.Zero(t, pid, "ended, but it has left something behind")
	remove(dir)
}
