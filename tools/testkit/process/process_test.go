package process_test

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/clusterring/clusterring/tools/testkit/process"
)

const patience = 20 * time.Second

// TestMain makes this binary play the part of a child, by its first argument.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "obey", "ignore":
			play(os.Args[1])
			os.Exit(0)
		case "fail":
			fmt.Fprintln(os.Stdout, "about to fail")
			os.Exit(3)
		}
	}
	goleak.VerifyTestMain(m)
}

func play(part string) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	fmt.Fprintln(os.Stdout, "ready")

	for range signals {
		if part == "obey" {
			fmt.Fprintln(os.Stdout, "stopped")
			return
		}
	}
}

func start(t *testing.T, part string, onDeath func(*process.Process)) *process.Process {
	t.Helper()

	self, err := os.Executable()
	require.NoError(t, err)
	p, err := process.Start(process.Spec{Name: part, Path: self, Args: []string{part}, LogFile: filepath.Join(t.TempDir(), "log")}, onDeath)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Kill() })

	if part != "fail" {
		require.Eventually(t, func() bool { return strings.Contains(process.Tail(p.LogFile, 9), "ready") }, patience, time.Millisecond)
	}

	return p
}

func noDeath(t *testing.T) func(*process.Process) {
	t.Helper()
	return func(p *process.Process) { t.Errorf("%s did not end by itself", p.Name) }
}

func TestStop(t *testing.T) {
	p := start(t, "obey", noDeath(t))
	require.True(t, p.Running())
	require.Zero(t, p.EndedAt())
	require.NoError(t, p.Stop(patience))
	require.False(t, p.Running())
	require.NoError(t, p.Err())
	require.NotZero(t, p.EndedAt())
	require.Equal(t, "ready\nstopped", process.Tail(p.LogFile, 9))
	require.NoError(t, p.Stop(patience), "once more")
}

func TestStopOfOneThatDoesNotListen(t *testing.T) {
	p := start(t, "ignore", noDeath(t))
	require.ErrorContains(t, p.Stop(10*time.Millisecond), "ignore did not stop in 10ms and was killed")
	require.False(t, p.Running())
	require.ErrorContains(t, p.Err(), "killed")
}

func TestKill(t *testing.T) {
	p := start(t, "obey", noDeath(t))
	require.NoError(t, p.Kill())
	require.False(t, p.Running())
	require.NoError(t, p.Kill(), "once more")
}

func TestDeath(t *testing.T) {
	dead := make(chan *process.Process, 1)
	p := start(t, "fail", func(p *process.Process) { dead <- p })
	require.Same(t, p, <-dead)
	require.ErrorContains(t, p.Err(), "exit status 3")
	require.Equal(t, "about to fail", process.Tail(p.LogFile, 1))
}

func TestFrozen(t *testing.T) {
	p := start(t, "obey", noDeath(t))
	require.NoError(t, p.Freeze())
	require.NoError(t, syscall.Kill(p.PID(), syscall.SIGTERM))
	require.True(t, p.Running())
	require.Equal(t, "ready", process.Tail(p.LogFile, 9), "it cannot know yet")
	p.MayEnd()
	require.NoError(t, p.Thaw())
	<-p.Exited()
	require.Equal(t, "ready\nstopped", process.Tail(p.LogFile, 9))
	require.ErrorContains(t, p.Freeze(), "has ended")
}

func TestFrozenIsStoppedInOrder(t *testing.T) {
	p := start(t, "obey", noDeath(t))
	require.NoError(t, p.Freeze())
	require.NoError(t, p.Stop(patience))
	require.NoError(t, p.Err())
}

func TestFrozenIsKilled(t *testing.T) {
	p := start(t, "obey", noDeath(t))
	require.NoError(t, p.Freeze())
	require.NoError(t, p.Kill())
}

func TestStartOfNothing(t *testing.T) {
	_, err := process.Start(process.Spec{Name: "x", Path: "/does/not/exist", LogFile: filepath.Join(t.TempDir(), "log")}, nil)
	require.ErrorContains(t, err, "start x")
	_, err = process.Start(process.Spec{Name: "x", LogFile: "/does/not/exist/log"}, nil)
	require.ErrorContains(t, err, "open the log of x")
}

func TestTailAndFind(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.WriteFile(file, []byte("one\ntwo is Forbidden\nthree\nfour: forbidden, too"), 0o600))

	require.Equal(t, "three\nfour: forbidden, too", process.Tail(file, 2))
	require.Empty(t, process.Tail(file+"x", 2))

	found, err := process.Find(file, 5, "FORBIDDEN", "panic")
	require.NoError(t, err)
	require.Equal(t, []string{"two is Forbidden", "four: forbidden, too"}, found)
	found, err = process.Find(file, 1, "forbidden")
	require.NoError(t, err)
	require.Len(t, found, 1)

	_, err = process.Find(file+"x", 1, "y")
	require.Error(t, err)
}

func TestQuote(t *testing.T) {
	require.Equal(t, `bin/x --a=b -d '{"name":"it'\''s"}' '' 127.0.0.1:1`,
		process.Quote("bin/x", "--a=b", "-d", `{"name":"it's"}`, "", "127.0.0.1:1"))
}

func TestFreePorts(t *testing.T) {
	addresses, err := process.FreePorts(20)
	require.NoError(t, err)

	seen := map[string]bool{}
	for _, address := range addresses {
		require.False(t, seen[address])
		seen[address] = true
		listener, err := net.Listen("tcp", address)
		require.NoError(t, err)
		require.Less(t, listener.Addr().(*net.TCPAddr).Port, 32_768, "connections get the ports from there on")
		require.NoError(t, listener.Close())
	}
	require.Len(t, seen, 20)
}
