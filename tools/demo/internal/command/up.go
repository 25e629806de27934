package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/demo/internal/scenario"
	"github.com/clusterring/clusterring/tools/demo/internal/state"
	"github.com/clusterring/clusterring/tools/lab/commandline"
	"github.com/clusterring/clusterring/tools/lab/process"
)

const (
	poll = 100 * time.Millisecond
	// supervisorLog is the log name of demo serve.
	supervisorLog = "demo"
)

// upper is one demo up.
type upper struct {
	common
	registry state.Registry
	console  *report.Console
}

func newUp(registry state.Registry) *cobra.Command {
	u := &upper{registry: registry}
	c := &cobra.Command{
		Use:   "up",
		Short: "Start everything, leave it running, and print how to use it",
		Long: `up starts a control plane, the services, and three shards in the background, creates some objects, and prints how to use the system:
with kubectl, with grpcurl, and by killing and adding shards. "demo down" stops it. Only one such demo can run at a time.`,
		Example: `  make up          builds everything, then runs this
  bin/demo up
  bin/demo down`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			u.console = report.NewConsole(c.OutOrStdout())
			return u.run(c.Context())
		},
	}
	u.add(c.Flags(), defaultUpDir())

	return c
}

// defaultUpDir is always the same, so that an exported kubeconfig path stays valid.
func defaultUpDir() string {
	return filepath.Join(os.TempDir(), "clusterring-demo-"+strconv.Itoa(os.Getuid()))
}

func (u *upper) run(ctx context.Context) error {
	if err := u.prepare(ctx, "kubectl"); err != nil {
		return err
	}

	if u.stateDir == "" {
		u.stateDir = defaultUpDir()
	}

	before, err := u.registry.Up()
	if err != nil {
		return err
	}

	if before != nil && before.Alive() {
		u.console.Text("The demo is already running.")
		return u.explain(before.Dir)
	}

	if before != nil {
		u.console.Note("removing what a killed demo has left in %s", before.Dir)

		if err := before.Remove(ctx); err != nil {
			return err
		}
	}

	return u.start(ctx)
}

// start starts the supervisor and shows its output until everything runs.
func (u *upper) start(ctx context.Context) error {
	if u.stateDir, _ = filepath.Abs(u.stateDir); u.stateDir == "" {
		return errors.New("find --state-dir: there is no working directory")
	}

	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}

	logs, err := os.MkdirTemp("", "clusterring-demo-up-*")
	if err != nil {
		return fmt.Errorf("make a directory for the first messages: %w", err)
	}

	defer func() { _ = os.RemoveAll(logs) }() // a few lines in the directory for temporary files

	output := filepath.Join(logs, supervisorLog+".log")

	log, err := os.Create(output)
	if err != nil {
		return fmt.Errorf("make the log of the supervisor: %w", err)
	}

	cmd := exec.Command(self, "serve", "--bin-dir="+u.binDir, "--assets="+u.assets, "--state-dir="+u.stateDir)
	cmd.Stdout, cmd.Stderr = log, log

	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives this process and its terminal
	if err := errors.Join(cmd.Start(), log.Close()); err != nil {
		return fmt.Errorf("start the supervisor: %w", err)
	}

	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()

	if err := u.follow(ctx, cmd.Process, output, exited); err != nil {
		return err
	}

	return u.explain(u.stateDir)
}

// follow copies the supervisor's output until everything runs.
func (u *upper) follow(ctx context.Context, supervisor *os.Process, output string, exited <-chan error) error {
	ticker := time.NewTicker(poll)
	defer ticker.Stop()

	shown := 0

	for {
		var ended error

		over := false

		select {
		case ended = <-exited:
			over = true
		case <-ctx.Done():
			u.console.Note("stopping everything")

			_ = supervisor.Signal(syscall.SIGTERM) // it may have ended already

			return errors.Join(context.Cause(ctx), orNothing(<-exited))
		case <-ticker.C:
		}

		text, err := os.ReadFile(output)
		if err != nil {
			return fmt.Errorf("read the output of the supervisor: %w", err)
		}

		if end := strings.LastIndexByte(string(text), '\n') + 1; end > shown {
			u.console.Text(string(text[shown:end]))
			shown = end
		}

		if over {
			return fmt.Errorf("%w: the supervisor has ended: %w", commandline.ErrShown, orZero(ended))
		}

		if _, err := os.Stat(filepath.Join(u.stateDir, usageFile)); err == nil {
			return nil
		}
	}
}

func orZero(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}

	return err
}

// usage describes how to use a running demo. The supervisor writes it when everything runs.
type usage struct {
	// Variables are the variables that demo env prints, without PATH.
	Variables []variable `json:"variables"`
	// Path lists the directories of programs.
	Path []string `json:"path"`
	// MoreShards starts another shard, in the foreground.
	MoreShards []string `json:"moreShards"`
}

// variable is a variable of a shell.
type variable struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

const usageFile = "usage.json"

// explain prints how to use the running system.
func (u *upper) explain(stateDir string) error {
	how, err := readUsage(stateDir)
	if err != nil {
		return err
	}
	u.console.Text(how.text(stateDir, filepath.Join(u.binDir, "demo")))

	return nil
}

// readUsage reads the usage file of a demo.
func readUsage(stateDir string) (*usage, error) {
	content, err := os.ReadFile(filepath.Join(stateDir, usageFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("the demo is still starting: see %s, or stop it with demo down", filepath.Join(stateDir, "logs"))
	}

	if err != nil {
		return nil, fmt.Errorf("read how to use the demo: %w", err)
	}

	how := &usage{}
	if err := json.Unmarshal(content, how); err != nil {
		return nil, fmt.Errorf("read how to use the demo: %w", err)
	}

	return how, nil
}

func (h *usage) text(stateDir, demo string) string {
	var out strings.Builder

	line := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	line("\nEverything is running. Set the variables in your shell, and look at the objects with kubectl:\n")
	line("  eval \"$(%s env)\"", process.Quote(demo))
	line("  kubectl get clusterrings")
	line("  kubectl get leases -n example -L alpha.sharding.timebertt.dev/state")
	line("  kubectl get websites,configmaps -A -L %s", shardLabel)
	line("\nQuery who owns what, and why (docs/queries.md shows all queries and their output):\n")
	line("  kubectl ring explain websites/site-0 -n web-1 --endpoint $RINGQUERY --plaintext")
	line("  kubectl ring get example --endpoint $RINGQUERY --plaintext")

	for _, q := range scenario.Queries() {
		const address = "$RINGQUERY" // expanded by the shell
		line("  %s", strings.ReplaceAll(process.Quote(append([]string{"grpcurl"}, q.Args(address)...)...), "'"+address+"'", address))
	}
	line("\nChange something, and look again:\n")
	line("  kill -9 $PID_SHARD_1   # shard-1 is dead after twice the duration of its Lease (%s); then its objects move", 2*localsystem.LeaseDuration)
	line("  kill $PID_SHARD_2      # shard-2 stops gracefully; its objects move immediately")
	line("  %s", process.Quote(h.MoreShards...))
	line("                         # starts one more shard, until you press Ctrl-C")
	line("\nLogs are in %s. To stop everything:\n", filepath.Join(stateDir, "logs"))
	line("  make down              # or %s down", demo)

	return strings.TrimRight(out.String(), "\n")
}

// orNothing drops the exit code of a process that received SIGTERM.
func orNothing(err error) error {
	if _, is := errors.AsType[*exec.ExitError](err); is {
		return nil
	}

	return err
}
