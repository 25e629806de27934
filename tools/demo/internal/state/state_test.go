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

	claim, err := state.NewClaim(state.Run)
	if err == nil {
		err = exec.Command(os.Args[0], "part", "--data="+filepath.Join(claim.Dir, "etcd")).Start()
	}

	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "ready")
	<-signals

	return errors.Join(state.Discard(context.Background(), claim.Dir), claim.Release())
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
	theDemo := func() (demo state.Demo, pid int) {
		demos, err := state.Demos()
		require.NoError(t, err)
		require.Len(t, demos, 1)
		pid, err = demos[0].Running()
		require.NoError(t, err)

		return demos[0], pid
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
	remove := func(demo state.Demo) {
		require.NoError(t, demo.Remove(t.Context()))
		require.Empty(t, naming(t, demo.Dir))

		entries, err := os.ReadDir(temp)
		require.NoError(t, err)
		require.Empty(t, entries)
	}

	cmd := play()
	demo, pid := theDemo()
	require.Equal(t, state.Run, demo.Kind)
	require.Equal(t, cmd.Process.Pid, pid)
	remove(demo)
	require.NoError(t, cmd.Wait(), "it was asked, not killed")

	cmd = play()
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())

	demo, pid = theDemo()
	require.Zero(t, pid)
	require.NotEmpty(t, naming(t, demo.Dir), "its process lives on")
	remove(demo)

	up, err := state.NewClaim(state.Up)
	require.NoError(t, err)
	_, err = state.NewClaim(state.Up)
	require.ErrorIs(t, err, os.ErrExist, "there is one such demo at a time")

	demo, pid = theDemo()
	require.Equal(t, state.Demo{Kind: state.Up, Dir: state.UpDir()}, demo)
	require.Equal(t, os.Getpid(), pid)

	one, err := state.NewClaim(state.Run)
	require.NoError(t, err)
	two, err := state.NewClaim(state.Run)
	require.NoError(t, err, "but many of these")
	demos, err := state.Demos()
	require.NoError(t, err)
	require.Len(t, demos, 3)

	for _, claim := range []*state.Claim{one, two} {
		require.NoError(t, errors.Join(state.Discard(t.Context(), claim.Dir), claim.Release()))
	}
	require.NoError(t, up.Release())

	demo, pid = theDemo()
	require.Zero(t, pid, "ended, but it has left something behind")
	remove(demo)
}

// TestDemosSpareOthers leaves alone what is not of a demo of this user.
func TestDemosSpareOthers(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	require.NoError(t, os.Mkdir(filepath.Join(temp, "clusterring-demo-test-1"), 0o700))

	demos, err := state.Demos()
	require.NoError(t, err)
	require.Empty(t, demos)
}
