package command_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/demo/internal/command"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/output"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

const (
	// patience is how long anything may take on a machine that is busy with other tests.
	patience = 3 * time.Minute
	tick     = 50 * time.Millisecond
)

// binaries are what make build makes. They are built by the first test that needs them.
var binaries struct {
	sync.Once
	dir string
	err error
}

func TestMain(m *testing.M) {
	code := m.Run()

	if binaries.dir != "" {
		_ = os.RemoveAll(binaries.dir)
	}
	os.Exit(code)
}

// desk is a user's machine: its demos know nothing of others, and leave their files where the test sees them.
type desk struct {
	*testing.T
	bin, assets string
	home, temp  string
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	assets, err := localplane.Binaries(t.Context(), os.Stderr)
	require.NoError(t, err)
	binaries.Do(func() {
		dir, err := os.MkdirTemp("", "clusterring-demo-test-*") //nolint:usetesting // it outlives this test
		binaries.dir, binaries.err = dir, errors.Join(err, build(dir))
	})
	require.NoError(t, binaries.err)
	d := &desk{T: t, bin: binaries.dir, assets: assets, home: t.TempDir(), temp: t.TempDir()}
	t.Cleanup(func() {
		cmd, _ := d.demo("down")
		_ = cmd.Run()
	})

	return d
}

// build builds what the demos run.
func build(dir string) error {
	args := []string{"-C", localplane.Root(), "BIN=" + dir}
	for _, name := range append(services.All, "example", "demo", "kubectl-ring", "grpcurl", "kubectl") {
		args = append(args, filepath.Join(dir, name))
	}

	if out, err := exec.Command("make", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("build the binaries: %w\n%s", err, out)
	}

	return nil
}

// demo returns a command that was not started yet, and its output.
func (d *desk) demo(args ...string) (*exec.Cmd, *output.Buffer) {
	if args[0] != "down" && args[0] != "env" {
		args = append(args, "--bin-dir="+d.bin, "--assets="+d.assets)
	}

	cmd := exec.Command(filepath.Join(d.bin, "demo"), args...)
	cmd.Env = append(os.Environ(), "HOME="+d.home, "XDG_CACHE_HOME="+d.home, "TMPDIR="+d.temp)
	out := &output.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out

	return cmd, out
}

// running is a demo that runs.
type running struct {
	*exec.Cmd
	out   *output.Buffer
	ended chan error
}

// start starts a demo and waits until it prints a text.
func (d *desk) start(command, printed string) *running {
	d.Helper()
	cmd, out := d.demo(command)
	require.NoError(d, cmd.Start())

	r := &running{Cmd: cmd, out: out, ended: make(chan error, 1)}
	go func() { r.ended <- cmd.Wait() }()
	d.Cleanup(func() { _ = cmd.Process.Kill() })
	require.Eventually(d, func() bool { return len(r.ended) > 0 || strings.Contains(out.String(), printed) }, patience, tick)
	require.Empty(d, r.ended, out)

	return r
}

// await waits until the run has ended and checks its exit code; -1 is that of a process that was killed.
func (d *desk) await(r *running, code int) {
	d.Helper()

	select {
	case <-r.ended:
		require.Equal(d, code, r.ProcessState.ExitCode(), r.out)
	case <-time.After(patience): //nolint:forbidigo // the end of all patience
		require.Fail(d, "the run does not end", r.out)
	}
}

// down runs demo down and returns what it says.
func (d *desk) down() string {
	d.Helper()
	cmd, out := d.demo("down")
	require.NoError(d, cmd.Run(), out)

	return out.String()
}

// processes returns the ids of the demos' processes, by the names of their binaries.
func (d *desk) processes() map[string][]int {
	d.Helper()

	out, err := exec.Command("ps", "-axo", "pid=,args=").Output()
	require.NoError(d, err)

	found := map[string][]int{}

	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)

		pid, err := strconv.Atoi(fields[0])
		if err != nil || len(fields) < 2 || !strings.Contains(line, d.temp) {
			continue
		}

		name := filepath.Base(fields[1])
		found[name] = append(found[name], pid)
	}

	return found
}

// kill kills a process of that name.
func (d *desk) kill(name string) {
	d.Helper()
	pids := d.processes()[name]
	require.NotEmpty(d, pids, name)
	require.NoError(d, syscall.Kill(pids[0], syscall.SIGKILL))
}

// requireNothingLeft checks that there are neither processes nor files.
func (d *desk) requireNothingLeft() {
	d.Helper()
	require.Empty(d, d.processes())
	entries, err := os.ReadDir(d.temp)
	require.NoError(d, err)
	require.Empty(d, entries)
	require.Contains(d, d.down(), "No demo is running, and none has left anything behind.")
}

// TestUpAndDown kills a process of every sort before the end; [TestQueries] stops a demo that runs.
func TestUpAndDown(t *testing.T) {
	d := newDesk(t)
	up := d.start("up", "make down")
	require.Contains(t, up.out.String(), `eval "$(`+d.bin+`/demo env)"`)
	require.Len(t, d.processes()["example"], 3)

	again, out := d.demo("up")
	require.Error(t, again.Run())
	require.Contains(t, out.String(), "demo up is already running")

	require.NoError(t, up.Process.Kill())
	d.await(up, -1)

	for _, name := range []string{"etcd", "rebalancer", "assigner", "example"} {
		d.kill(name)
	}
	require.NotEmpty(t, d.processes()["kube-apiserver"])

	require.Contains(t, d.down(), "Removed the demo")
	d.requireNothingLeft()
}

func TestInterruptedRun(t *testing.T) {
	d := newDesk(t)
	run := d.start("run", "hold their Leases")
	require.NoError(t, run.Process.Signal(os.Interrupt))
	d.await(run, 130)
	require.Contains(t, run.out.String(), "Interrupted: everything was stopped.")
	d.requireNothingLeft()
}

func TestRunInWhichAServiceDies(t *testing.T) {
	d := newDesk(t)
	run := d.start("run", "hold their Leases")
	d.kill("ringquery")
	d.await(run, 1)

	for _, want := range []string{
		" has ended by itself: signal: killed", "ringquery-", "FAILED", "Logs are kept in " + d.temp,
	} {
		require.Contains(t, run.out.String(), want)
	}
	require.Empty(t, d.processes())

	require.Contains(t, d.down(), "Removed the demo")
	d.requireNothingLeft()
}

func TestMistakes(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"unknown command":   {[]string{"tidy"}, `unknown command "tidy"`},
		"unknown flag":      {[]string{"run", "--object=3"}, "unknown flag: --object; see demo run --help"},
		"unknown mode":      {[]string{"modes", "standby", "magic"}, `invalid argument "magic"`},
		"an argument":       {[]string{"up", "x"}, `unknown command "x" for "demo up"`},
		"env of nothing":    {[]string{"env"}, "demo up is not running, or still starting: start it with make up"},
		"nothing built":     {[]string{"run", "--bin-dir=testdata/none"}, "run make build"},
		"nothing built, up": {[]string{"up", "--bin-dir=testdata/none"}, "run make build"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())

			c := command.New()
			c.SetArgs(test.args)
			c.SetOut(&bytes.Buffer{})
			require.ErrorContains(t, c.ExecuteContext(t.Context()), test.want)
		})
	}
}
