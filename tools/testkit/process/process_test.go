package process_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/clusterring/clusterring/tools/testkit/process"
)

const (
	patience = 20 * time.Second
	pause    = 300 * time.Millisecond
)

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

// start starts a process that plays a part, and waits until it is ready, unless it fails. With a pause, it is started
// again whenever it has ended.
func start(t *testing.T, part string, again time.Duration, onDeath func(*process.Process)) *process.Process {
	t.Helper()

	self, err := os.Executable()
	require.NoError(t, err)
	p, err := process.Start(process.Spec{
		Name: part, Path: self, More: func() []string { return []string{part} }, LogFile: filepath.Join(t.TempDir(), "log"),
		Again: again,
	}, onDeath)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Destroy() })

	if part != "fail" {
		awaitReady(t, p, 1)
	}

	return p
}

// awaitReady waits until so many lives have said that they are ready.
func awaitReady(t *testing.T, p *process.Process, lives int) {
	t.Helper()
	require.Eventually(t, func() bool {
		return strings.Count(process.Tail(p.LogFile, 9), "ready") == lives
	}, patience, time.Millisecond)
}

func noDeath(t *testing.T) func(*process.Process) {
	t.Helper()
	return func(p *process.Process) { t.Errorf("%s did not end by itself", p.Name) }
}

func TestStop(t *testing.T) {
	for _, again := range []time.Duration{0, pause} {
		p := start(t, "obey", again, noDeath(t))
		require.True(t, p.Running())
		require.Zero(t, p.EndedAt())
		require.NoError(t, p.Stop(patience))
		require.False(t, p.Running())
		require.NoError(t, p.Err())
		require.NotZero(t, p.EndedAt())
		require.Len(t, p.Lives(), 1)
		require.Equal(t, "ready\nstopped", process.Tail(p.LogFile, 9))
		require.NoError(t, p.Stop(patience), "once more")
		require.NoError(t, p.Destroy(), "once more")
	}
}

func TestStopOfOneThatDoesNotListen(t *testing.T) {
	p := start(t, "ignore", 0, noDeath(t))
	require.ErrorContains(t, p.Stop(10*time.Millisecond), "ignore did not stop in 10ms and was killed")
	require.False(t, p.Running())
	require.ErrorContains(t, p.Err(), "killed")
}

func TestDeath(t *testing.T) {
	dead := make(chan *process.Process, 1)
	p := start(t, "fail", 0, func(p *process.Process) { dead <- p })
	require.Same(t, p, <-dead)
	require.ErrorContains(t, p.Err(), "exit status 3")
	require.Equal(t, "about to fail", process.Tail(p.LogFile, 1))
	require.EqualError(t, p.AwaitReady(t.Context(), process.Readiness{}),
		"fail did not become ready (): it has ended: exit status 3")
}

func TestFrozen(t *testing.T) {
	p := start(t, "obey", 0, noDeath(t))
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
	p := start(t, "obey", 0, noDeath(t))
	require.NoError(t, p.Freeze())
	require.NoError(t, p.Stop(patience))
	require.NoError(t, p.Err())
}

func TestStartOfNothing(t *testing.T) {
	_, err := process.Start(process.Spec{Name: "x", Path: "/does/not/exist", LogFile: filepath.Join(t.TempDir(), "log")},
		nil)
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

func TestKilledProcessStartsAgain(t *testing.T) {
	p := start(t, "obey", pause, nil)
	require.NoError(t, p.Kill())
	awaitReady(t, p, 2)

	lives := p.Lives()
	require.Len(t, lives, 2)
	require.NotEqual(t, lives[0].PID, lives[1].PID)
	require.Equal(t, lives[1].PID, p.PID())
	require.True(t, lives[0].Told)
	require.NotZero(t, lives[0].Ended)
	require.ErrorContains(t, lives[0].Err, "killed")
	require.Zero(t, lives[1].Ended)
	require.True(t, p.Running())
	require.NoError(t, p.Err())
}

func TestProcessThatEndsByItselfStartsAgain(t *testing.T) {
	p := start(t, "fail", pause, nil)
	require.Eventually(t, func() bool { return len(p.Lives()) > 1 }, patience, time.Millisecond)

	first := p.Lives()[0]
	require.False(t, first.Told)
	require.ErrorContains(t, first.Err, "exit status 3")
	p.MayEnd()
	<-p.Exited()
}

// healthz answers like a service.
func healthz(t *testing.T, status func() int) process.Readiness {
	t.Helper()

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status())
		_, _ = w.Write([]byte("[+]ping ok\n[-]caches failed: reason withheld\n[-]webhook failed: reason withheld\n"))
	}))
	t.Cleanup(server.Close)

	return process.Readiness{URL: server.URL, Client: server.Client()}
}

func TestAwaitReady(t *testing.T) {
	p := start(t, "obey", 0, nil)

	var asked atomic.Int32

	r := healthz(t, func() int {
		if asked.Add(1) < 3 {
			return http.StatusInternalServerError
		}

		return http.StatusOK
	})

	_, answer := r.Ask(t.Context())
	require.Equal(t, "caches failed: reason withheld, webhook failed: reason withheld", answer)
	require.NoError(t, p.AwaitReady(t.Context(), r))
	require.EqualValues(t, 3, asked.Load())
}

func TestAwaitReadyEndsWithItsContext(t *testing.T) {
	p := start(t, "obey", 0, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("somebody has pressed Ctrl-C")
	r := healthz(t, func() int { return http.StatusInternalServerError })
	cancel(cause)
	require.Equal(t, cause, p.AwaitReady(ctx, r))
}
