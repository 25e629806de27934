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
	if len(os.Args) > 3 {
		switch os.Args[1] {
		case "demo":
			if err := playDemo(os.Args[2], os.Args[3]); err != nil {
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

// playDemo claims a state directory in the parent directory, which its own arguments do not name, starts a process that
// does, and waits to be told to stop.
func playDemo(registry, parent string) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)

	claim, err := state.Registry{Dir: registry}.Claim(state.Run, filepath.Join(parent, "state"))
	if err == nil {
		err = exec.Command(os.Args[0], "part", "--data="+filepath.Join(claim.Dir, "etcd"), "x").Start()
	}

	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "ready")
	<-signals

	return errors.Join(state.Discard(context.Background(), claim.Dir), claim.Release(false))
}

// demo starts a process that plays a demo, and returns it with its state directory.
func demo(t *testing.T, registry state.Registry) (*exec.Cmd, string) {
	t.Helper()
	parent := t.TempDir()
	dir := filepath.Join(parent, "state")
	cmd := exec.Command(os.Args[0], "demo", registry.Dir, parent)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())

	_, err = out.Read(make([]byte, 1))
	require.NoError(t, err)
	require.NotEmpty(t, naming(t, dir))

	return cmd, dir
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

func onlyRecord(t *testing.T, registry state.Registry) *state.Record {
	t.Helper()

	records, err := registry.Records()
	require.NoError(t, err)
	require.Len(t, records, 1)

	return records[0]
}

func requireNothingLeft(t *testing.T, registry state.Registry, dir string) {
	t.Helper()
	require.Empty(t, naming(t, dir))
	require.NoDirExists(t, dir)

	entries, err := os.ReadDir(registry.Dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestRemoveOfADemoThatRuns(t *testing.T) {
	registry := state.Registry{Dir: t.TempDir()}
	cmd, dir := demo(t, registry)
	record := onlyRecord(t, registry)
	require.True(t, record.Alive())
	require.Equal(t, dir, record.Dir)
	require.Equal(t, cmd.Process.Pid, record.PID)

	require.NoError(t, record.Remove(t.Context()))

	requireNothingLeft(t, registry, dir)
	require.NoError(t, cmd.Wait(), "it was asked, not killed")
}

func TestRemoveOfADemoThatWasKilled(t *testing.T) {
	registry := state.Registry{Dir: t.TempDir()}
	cmd, dir := demo(t, registry)
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.NotEmpty(t, naming(t, dir), "its process lives on")
	record := onlyRecord(t, registry)
	require.False(t, record.Alive())

	require.NoError(t, record.Remove(t.Context()))

	requireNothingLeft(t, registry, dir)
}

func TestClaim(t *testing.T) {
	registry := state.Registry{Dir: filepath.Join(t.TempDir(), "records")}
	up, err := registry.Up()
	require.NoError(t, err)
	require.Nil(t, up)

	first, err := registry.Claim(state.Up, filepath.Join(t.TempDir(), "up"))
	require.NoError(t, err)
	_, err = registry.Claim(state.Up, filepath.Join(t.TempDir(), "another"))
	require.ErrorIs(t, err, os.ErrExist, "there is one such demo at a time")
	one, err := registry.Claim(state.Run, "")
	require.NoError(t, err)
	require.DirExists(t, one.Dir)

	two, err := registry.Claim(state.Run, "")
	require.NoError(t, err, "but many of these")
	require.NotEqual(t, one.Dir, two.Dir)

	records, err := registry.Records()
	require.NoError(t, err)
	require.Len(t, records, 3)

	up, err = registry.Up()
	require.NoError(t, err)
	require.True(t, up.Alive())
	require.Equal(t, first.Dir, up.Dir)
	require.Equal(t, os.Getpid(), up.PID)

	require.NoError(t, first.Release(true))

	up, err = registry.Up()
	require.NoError(t, err)
	require.False(t, up.Alive(), "ended, but it has left something behind")

	for _, claim := range []*state.Claim{one, two} {
		require.NoError(t, os.Remove(claim.Dir))
		require.NoError(t, claim.Release(false))
	}
	require.NoError(t, up.Remove(t.Context()))
	requireNothingLeft(t, registry, first.Dir)
}

func TestClaimSparesWhatIsThere(t *testing.T) {
	registry, dir := state.Registry{Dir: t.TempDir()}, t.TempDir()
	precious := filepath.Join(dir, "precious")
	require.NoError(t, os.WriteFile(precious, nil, 0o600))

	_, err := registry.Claim(state.Run, dir)
	require.ErrorContains(t, err, "is not empty")
	require.FileExists(t, precious)
}

func TestBrokenRecord(t *testing.T) {
	for content, want := range map[string]string{`{`: "EOF", `{"dir":"/"}`: "names no state directory", `{"dir":"x"}`: "names no state directory"} {
		registry := state.Registry{Dir: t.TempDir()}
		require.NoError(t, os.WriteFile(filepath.Join(registry.Dir, "up.json"), []byte(content), 0o600))
		_, err := registry.Records()
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "up.json", "it says what to remove")
	}
}
