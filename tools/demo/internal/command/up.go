package command

import (
	"bufio"
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

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/scenario"
	"github.com/clusterring/clusterring/tools/demo/internal/state"
	"github.com/clusterring/clusterring/tools/lab/commandline"
	"github.com/clusterring/clusterring/tools/testkit/process"
)

func (c *common) newUp() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start everything, leave it running, and print how to use it",
		Long: `up starts a control plane, the services, and three shards in the background, creates some objects, and prints how to use the system:
with kubectl, with grpcurl, and by killing and adding shards. "demo down" stops it. Only one such demo can run at a time.`,
		Example: `  make up          builds everything, then runs this
  bin/demo up
  bin/demo down`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.up(cmd.Context()) },
	}
	c.add(cmd.Flags())

	return cmd
}

func (c *common) up(ctx context.Context) error {
	if err := c.prepare(ctx, "kubectl"); err != nil {
		return err
	}

	before := state.Demo{Kind: state.Up, Dir: state.UpDir()}

	pid, err := before.Running()
	if err != nil {
		return err
	}

	if pid != 0 {
		c.console.Text("The demo is already running.")
		return c.explain()
	}

	if _, err := os.Stat(before.Dir); err == nil {
		c.console.Note("removing what a killed demo has left in %s", before.Dir)

		if err := before.Remove(ctx); err != nil {
			return err
		}
	}

	return c.start(ctx)
}

// explain prints how to use the running system.
func (c *common) explain() error {
	text, err := saved(usageFile)
	if err == nil {
		c.console.Text(text)
	}

	return err
}

// start starts demo serve in the background, and shows its output, which ends when everything runs.
func (c *common) start(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}

	output, in, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe for the output of demo serve: %w", err)
	}
	defer func() { _ = output.Close() }() // was only read

	cmd := exec.Command(self, "serve", "--bin-dir="+c.binDir, "--assets="+c.assets, state.UpDir())
	cmd.Stdout, cmd.Stderr = in, in

	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives this process and its terminal
	if err := errors.Join(cmd.Start(), in.Close()); err != nil {
		return fmt.Errorf("start demo serve: %w", err)
	}

	unwatch := context.AfterFunc(ctx, func() {
		c.console.Note("stopping everything")

		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	})
	defer unwatch()

	for lines := bufio.NewScanner(output); lines.Scan(); {
		c.console.Text(lines.Text())
	}

	if ctx.Err() == nil && c.explain() == nil {
		return nil
	}

	_ = cmd.Wait() // the state tells more

	if ctx.Err() != nil {
		return context.Cause(ctx)
	}

	return fmt.Errorf("%w: demo serve has ended: %s", commandline.ErrShown, cmd.ProcessState)
}

const (
	servedShards  = 3
	servedObjects = 50
)

// newServe returns the command that demo up runs in the background.
func (c *common) newServe() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "serve",
		Short:  "Run everything until a signal; demo up starts this in the background",
		Hidden: true,
		Args:   cobra.MaximumNArgs(1), // the state directory, for those who look at the processes
		RunE: func(cmd *cobra.Command, _ []string) error {
			signal.Ignore(syscall.SIGPIPE) // demo up may be killed
			return c.serve(cmd.Context())
		},
	}
	c.add(cmd.Flags())

	return cmd
}

// serve runs the system with some shards and objects until ctx ends, and leaves nothing behind.
func (c *common) serve(ctx context.Context) error {
	if err := c.prepare(ctx, "kubectl"); err != nil {
		return err
	}

	claim, err := state.NewClaim(state.Up)
	if err != nil {
		return err
	}

	err = localsystem.Run(ctx, c.options(claim.Dir), func(ctx context.Context, sys *localsystem.System) error {
		story, err := scenario.New(ctx, sys, c.console, scenario.Options{Shards: servedShards, Objects: servedObjects})
		if err != nil {
			return err
		}

		if err := story.Prologue(ctx); err != nil {
			return err
		}

		return c.stay(ctx, sys)
	})

	return errors.Join(err, state.Discard(context.WithoutCancel(ctx), claim.Dir), claim.Release())
}

// stay saves how to use the system, ends the output, so that demo up knows that everything is ready, and waits until
// ctx ends.
func (c *common) stay(ctx context.Context, sys *localsystem.System) error {
	usage, err := c.usage(ctx, sys)
	if err != nil {
		return err
	}

	if err := errors.Join(save(sys.StateDir, envFile, exports(sys)), save(sys.StateDir, usageFile, usage),
		endOutput()); err != nil {
		return err
	}
	// From here on, processes may end: users are invited to kill some.
	<-ctx.Done()

	return nil
}

// endOutput redirects the standard output and error to nowhere. Their reader sees the end of a file.
func endOutput() error {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("end the output: %w", err)
	}

	to := int(null.Fd()) //nolint:gosec // a small number
	if err := errors.Join(unix.Dup2(to, syscall.Stdout), unix.Dup2(to, syscall.Stderr), null.Close()); err != nil {
		return fmt.Errorf("end the output: %w", err)
	}

	return nil
}

// usageText contains placeholders in braces; see usage.
const usageText = `
Everything is running. Set the variables in your shell, and look at the objects with kubectl:

  eval "$({DEMO} env)"
  kubectl get clusterrings
  kubectl get leases -n example -L {STATE}
  kubectl get websites,configmaps -A -L {RING}

Query who owns what, and why (docs/queries.md shows all queries and their output):

  kubectl ring explain websites/site-0 -n web-1 --endpoint $RINGQUERY --plaintext
  kubectl ring get example --endpoint $RINGQUERY --plaintext
{QUERIES}
Change something, and look again:

  kill -9 $PID_SHARD_1   # shard-1 is dead after twice the duration of its Lease ({DEATH}); then its objects move
  kill $PID_SHARD_2      # shard-2 stops gracefully; its objects move immediately
  {SHARD}
                         # starts one more shard, until you press Ctrl-C

Logs are in {DIR}/logs. To stop everything:

  make down              # or {DEMO} down
`

// usage describes how to use the running system.
func (c *common) usage(ctx context.Context, sys *localsystem.System) (string, error) {
	next := fmt.Sprintf("shard-%d", servedShards+1)

	kubeconfig, err := sys.ShardKubeconfig(ctx, next)
	if err != nil {
		return "", err
	}

	var queries strings.Builder

	for _, q := range scenario.Queries() {
		const address = "$RINGQUERY" // expanded by the shell

		command := process.Quote(append([]string{"grpcurl"}, q.Args(address)...)...)
		queries.WriteString("  " + strings.ReplaceAll(command, "'"+address+"'", address) + "\n")
	}

	return strings.NewReplacer(
		"{DEMO}", process.Quote(filepath.Join(c.binDir, "demo")), "{DIR}", sys.StateDir, "{QUERIES}", queries.String(),
		"{STATE}", contract.LabelState, "{RING}", contract.ShardLabel(localsystem.Ring),
		"{DEATH}", (2 * localsystem.LeaseDuration).String(),
		"{SHARD}", process.Quote(
			filepath.Join(sys.BinDir, "example"), "--kubeconfig="+kubeconfig, "--shard-name="+next,
			"--lease-namespace="+localsystem.ShardNamespace,
			"--lease-duration="+localsystem.LeaseDuration.String(), "--metrics-bind-address=0", "--health-probe-bind-address=0"),
	).Replace(usageText), nil
}

func (c *common) newDown() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop the system that demo up has started, and remove what all demos have left behind",
		Long: `down stops every demo of this user, running or killed, and removes its files: the system that demo up has started, what a killed
demo run has left behind, and kept logs. It finds processes by the state directory in their arguments, so it also works after some of
them have died.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.down(cmd.Context()) },
	}
}

func (c *common) down(ctx context.Context) error {
	demos, err := state.Demos()
	if err != nil {
		return err
	}

	var errs []error

	for _, demo := range demos {
		what := "left over"
		if pid, err := demo.Running(); err != nil || pid != 0 {
			what = "running"
		}
		c.console.Progress("removing demo %s (%s), state in %s", demo.Kind, what, demo.Dir)

		if err := demo.Remove(ctx); err != nil {
			errs = append(errs, err)
			continue
		}
		c.console.Text("Removed demo " + string(demo.Kind) + " (" + what + ") with its state in " + demo.Dir + ".")
	}

	if len(demos) == 0 {
		c.console.Text("No demo is running, and none has left anything behind.")
	}

	return errors.Join(errs...)
}

func (c *common) newEnv() *cobra.Command {
	return &cobra.Command{
		Use:   "env",
		Short: "Print shell variables for the system that demo up has started",
		Long: `env prints commands for a POSIX shell that set these variables:

  KUBECONFIG, PATH   for kubectl, kubectl ring, and grpcurl
  RINGQUERY          address of a query service without TLS and authentication
  RINGQUERY_TLS      address of a query service with TLS and authentication
  RINGQUERY_CA       CA of its certificate
  PID_SHARD_1, ...   ids of the processes`,
		Example: `  eval "$(bin/demo env)"`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := saved(envFile)
			if err == nil {
				_, err = fmt.Fprint(cmd.OutOrStdout(), text)
			}

			return err
		},
	}
}

// exports returns commands that set the variables in a shell.
func exports(sys *localsystem.System) string {
	var out strings.Builder

	export := func(name, value string) { fmt.Fprintf(&out, "export %s=%s\n", name, process.Quote(value)) }
	export("KUBECONFIG", sys.Plane.Kubeconfig())
	export("RINGQUERY", sys.Queries)
	export("RINGQUERY_TLS", sys.GuardedQueries)
	export("RINGQUERY_CA", sys.CA)

	for _, p := range sys.Started() {
		export("PID_"+strings.ToUpper(strings.ReplaceAll(p.Name, "-", "_")), strconv.Itoa(p.PID()))
	}
	fmt.Fprintf(&out, "export PATH=%s:\"$PATH\"\n",
		process.Quote(sys.BinDir+string(os.PathListSeparator)+sys.Plane.BinDir()))

	return out.String()
}

// Files in which demo serve saves how to use the system, when it is ready: the output of demo env, and the last output
// of demo up.
const (
	envFile   = "env"
	usageFile = "usage"
)

// save writes a file so that a reader sees nothing or all of it.
func save(stateDir, name, content string) error {
	file := filepath.Join(stateDir, name)

	err := os.WriteFile(file+".new", []byte(content), 0o600)
	if err == nil {
		err = os.Rename(file+".new", file)
	}

	if err != nil {
		return fmt.Errorf("save how to use the demo: %w", err)
	}

	return nil
}

// saved returns what the running demo serve has saved.
func saved(name string) (string, error) {
	up := state.Demo{Kind: state.Up, Dir: state.UpDir()}

	pid, err := up.Running()
	if err != nil {
		return "", err
	}

	if pid == 0 {
		return "", errors.New("demo up is not running: start it with make up")
	}

	content, err := os.ReadFile(filepath.Join(up.Dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("the demo is still starting: see %s, or stop it with demo down", filepath.Join(up.Dir, "logs"))
	}

	if err != nil {
		return "", fmt.Errorf("read how to use the demo: %w", err)
	}

	return string(content), nil
}
