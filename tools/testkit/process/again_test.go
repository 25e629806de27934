package process_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/testkit/process"
)

// keep starts a process that is started again whenever it has ended.
func keep(t *testing.T, part string) *process.Process {
	t.Helper()

	self, err := os.Executable()
	require.NoError(t, err)
	p, err := process.Start(process.Spec{
		Name: part, Path: self, More: func() []string { return []string{part} }, LogFile: filepath.Join(t.TempDir(), "log"),
		Again: 300 * time.Millisecond,
	}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Destroy() })

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
	p := keep(t, "obey")
	awaitReady(t, p, 1)
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
	p := keep(t, "fail")
	require.Eventually(t, func() bool { return len(p.Lives()) > 1 }, patience, time.Millisecond)

	first := p.Lives()[0]
	require.False(t, first.Told)
	require.ErrorContains(t, first.Err, "exit status 3")
	p.MayEnd()
	<-p.Exited()
}

func TestStoppedProcessStaysAway(t *testing.T) {
	p := keep(t, "obey")
	awaitReady(t, p, 1)
	require.NoError(t, p.Stop(patience))
	require.NoError(t, p.Lives()[0].Err)
	require.Len(t, p.Lives(), 1)
	require.NoError(t, p.Stop(patience), "once more")
	require.NoError(t, p.Destroy(), "once more")

	deaf := keep(t, "ignore")
	awaitReady(t, deaf, 1)
	require.ErrorContains(t, deaf.Stop(10*time.Millisecond), "ignore did not stop in 10ms")
	<-deaf.Exited()
	require.Len(t, deaf.Lives(), 1)
}

func TestFreeze(t *testing.T) {
	p := keep(t, "obey")
	awaitReady(t, p, 1)
	require.NoError(t, p.Freeze())
	p.MayEnd()
	require.NoError(t, syscall.Kill(p.PID(), syscall.SIGTERM))
	require.Never(t, func() bool { return !p.Lives()[0].Ended.IsZero() }, 50*time.Millisecond, 10*time.Millisecond, "a frozen process cannot obey")
	require.NoError(t, p.Thaw())
	<-p.Exited()
	require.False(t, p.Lives()[0].Told, "it was not told by way of this package")
}
