package process_test

import (
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/clusterring/clusterring/tools/faults/process"
)

const patience = 20 * time.Second

// TestMain makes this test binary play the part of a child, by its first argument.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "obey" || os.Args[1] == "ignore") {
		play(os.Args[1])
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == "fail" {
		os.Exit(3)
	}
	goleak.VerifyTestMain(m)
}

// play returns when it was asked to stop and is one that obeys.
func play(part string) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	os.Stdout.WriteString("ready\n")
	for range signals {
		if part == "obey" {
			return
		}
	}
}

func start(t *testing.T, part string) *process.Process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	p, err := process.Start(process.Spec{
		Name: part, Path: self, Args: func() []string { return []string{part} }, LogFile: filepath.Join(t.TempDir(), "log"),
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Retire(syscall.SIGKILL, patience) })
	return p
}

// awaitReady waits until so many lives have said that they are ready.
func awaitReady(t *testing.T, p *process.Process, lives int) {
	t.Helper()
	require.Eventually(t, func() bool {
		content, err := os.ReadFile(p.LogFile)
		return err == nil && strings.Count(string(content), "ready") == lives
	}, patience, time.Millisecond)
}

func TestKilledProcessStartsAgain(t *testing.T) {
	p := start(t, "obey")
	awaitReady(t, p, 1)
	p.Kill()
	awaitReady(t, p, 2)

	lives := p.Lives()
	require.Len(t, lives, 2)
	require.NotEqual(t, lives[0].PID, lives[1].PID)
	require.True(t, lives[0].Told)
	require.NotZero(t, lives[0].Ended)
	require.ErrorContains(t, lives[0].Err, "killed")
	require.Zero(t, lives[1].Ended)
}

func TestProcessThatEndsByItselfStartsAgain(t *testing.T) {
	p := start(t, "fail")
	require.Eventually(t, func() bool { return len(p.Lives()) > 1 }, patience, time.Millisecond)
	first := p.Lives()[0]
	require.False(t, first.Told)
	require.ErrorContains(t, first.Err, "exit status 3")
	p.Quit()
	<-p.Over()
}

func TestRetire(t *testing.T) {
	p := start(t, "obey")
	awaitReady(t, p, 1)
	require.NoError(t, p.Retire(syscall.SIGTERM, patience))
	require.NoError(t, p.Lives()[0].Err)
	require.Len(t, p.Lives(), 1)
	require.NoError(t, p.Retire(syscall.SIGTERM, patience), "once more")

	deaf := start(t, "ignore")
	awaitReady(t, deaf, 1)
	require.ErrorContains(t, deaf.Retire(syscall.SIGTERM, 10*time.Millisecond), "ignore did not end in 10ms")
	<-deaf.Over()
}

func TestFreeze(t *testing.T) {
	p := start(t, "obey")
	awaitReady(t, p, 1)
	require.Equal(t, p.Lives()[0].PID, p.Freeze())
	p.Quit()
	require.NoError(t, syscall.Kill(p.Lives()[0].PID, syscall.SIGTERM))
	require.Never(t, func() bool { return p.Lives()[0].Ended != 0 }, 50*time.Millisecond, 10*time.Millisecond, "a frozen process cannot obey")
	p.Thaw()
	<-p.Over()
	require.False(t, p.Lives()[0].Told, "it was not told by way of this package")
}

func TestStartOfNothing(t *testing.T) {
	_, err := process.Start(process.Spec{Name: "x", Path: "/does/not/exist", Args: func() []string { return nil }, LogFile: filepath.Join(t.TempDir(), "log")})
	require.ErrorContains(t, err, "start x")
	_, err = process.Start(process.Spec{Name: "x", LogFile: "/does/not/exist/log"})
	require.ErrorContains(t, err, "open the log of x")
}
