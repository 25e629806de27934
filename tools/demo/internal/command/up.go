package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/scenario"
	"github.com/clusterring/clusterring/tools/demo/internal/state"
	"github.com/clusterring/clusterring/tools/lab/system"
	"github.com/clusterring/clusterring/tools/testkit/process"
)

// upObjects is the number of Websites of demo up.
const upObjects = 50

func (c *common) newUp() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run everything until Ctrl-C, and print how to use it",
		Long: `up starts a control plane, the services, and three shards, creates some objects, and prints how to use the system from another terminal:
with kubectl, with grpcurl, and by killing and adding shards. Ctrl-C and "demo down" stop it. Only one such demo can run at a time.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.up(cmd.Context()) },
	}
	c.add(cmd.Flags())

	return cmd
}

func (c *common) up(ctx context.Context) error {
	if err := c.prepare(ctx, "kubectl", "kubectl-ring", "grpcurl"); err != nil {
		return err
	}

	pid, err := state.Running(state.UpDir())
	if pid != 0 {
		err = fmt.Errorf("demo up is already running (process %d): use it with demo env, or stop it with demo down", pid)
	}

	if err != nil {
		return err
	}

	if err := state.Discard(ctx, state.UpDir()); err != nil { // of a killed demo
		return err
	}

	dir, release, err := state.Claim(state.UpDir())
	if err != nil {
		return err
	}

	err = localsystem.Run(ctx, c.options(dir), func(ctx context.Context, sys *localsystem.System) error {
		story, err := scenario.New(ctx, sys, c.console, upObjects)
		if err != nil {
			return err
		}

		for _, step := range story.Steps()[:2] { // the first shards join, the first objects are created
			if _, err := story.Do(ctx, step); err != nil {
				return err
			}
		}

		return c.stay(ctx, sys)
	})

	return errors.Join(err, state.Discard(context.WithoutCancel(ctx), dir), release())
}

// stay prints how to use the system, and waits until ctx ends.
func (c *common) stay(ctx context.Context, sys *localsystem.System) error {
	usage, err := c.usage(ctx, sys)
	if err != nil {
		return err
	}

	if err := os.WriteFile(filepath.Join(sys.StateDir, envFile), []byte(exports(sys)), 0o600); err != nil {
		return fmt.Errorf("save the variables: %w", err)
	}

	c.console.Text("%s", usage)
	// From here on, processes may end: users are invited to kill some.
	<-ctx.Done()

	return nil
}

// usageText contains placeholders in braces; see usage.
const usageText = `
Everything is running. Set the variables in another shell, and look at the objects with kubectl:

  eval "$({DEMO} env)"
  kubectl get clusterrings
  kubectl get leases -n example -L {STATE}
  kubectl get websites,configmaps -A -L {RING}

Query who owns what, and why (docs/queries.md shows all queries and their output):

  kubectl ring explain websites/site-0 -n web-1 --endpoint $RINGQUERY --plaintext
  kubectl ring get example --endpoint $RINGQUERY --plaintext
  grpcurl -plaintext $RINGQUERY list

Change something, and look again:

  kill -9 $PID_SHARD_1   # shard-1 is dead after twice the duration of its Lease ({DEATH}); then its objects move
  kill $PID_SHARD_2      # shard-2 stops gracefully; its objects move immediately
  {SHARD}
                         # starts one more shard, until you press Ctrl-C

Logs are in {DIR}. To stop everything, press Ctrl-C here, or run:

  make down              # or {DEMO} down
`

// usage describes how to use the running system.
func (c *common) usage(ctx context.Context, sys *localsystem.System) (string, error) {
	const next = "shard-4"

	kubeconfig, err := sys.Plane.PodKubeconfig(ctx, system.ShardNamespace, system.ShardAccount, next)
	if err != nil {
		return "", err
	}

	return strings.NewReplacer(
		"{DEMO}", process.Quote(filepath.Join(c.binDir, "demo")), "{DIR}", sys.Dir,
		"{STATE}", contract.LabelState, "{RING}", contract.ShardLabel(localsystem.Ring),
		"{DEATH}", (2 * localsystem.LeaseDuration).String(),
		"{SHARD}", process.Quote(
			filepath.Join(sys.BinDir, "example"), "--kubeconfig="+kubeconfig, "--shard-name="+next,
			"--lease-namespace="+system.ShardNamespace,
			"--lease-duration="+localsystem.LeaseDuration.String(), "--metrics-bind-address=0", "--health-probe-bind-address=0"),
	).Replace(usageText), nil
}

func (c *common) newDown() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop all demos, and remove what they have left behind",
		Long: `down stops every demo of this user, running or killed, and removes its files: the system that demo up has started, what a killed
demo run has left behind, and kept logs. It finds processes by the state directory in their arguments, so it also works after some of
them have died.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.down(cmd.Context()) },
	}
}

func (c *common) down(ctx context.Context) error {
	dirs, err := state.Dirs()
	if err != nil {
		return err
	}

	var errs []error

	for _, dir := range dirs {
		if err := state.Remove(ctx, dir); err != nil {
			errs = append(errs, err)
			continue
		}
		c.console.Text("Removed the demo with its state in %s.", dir)
	}

	if len(dirs) == 0 {
		c.console.Text("No demo is running, and none has left anything behind.")
	}

	return errors.Join(errs...)
}

// envFile is the file in which demo up saves the output of demo env, when it is ready.
const envFile = "env"

func (c *common) newEnv() *cobra.Command {
	return &cobra.Command{
		Use:   "env",
		Short: "Print shell variables for the system that demo up runs",
		Long: `env prints commands for a POSIX shell that set these variables:

  KUBECONFIG, PATH   for kubectl, kubectl ring, and grpcurl
  RINGQUERY          address of a query service without TLS and authentication
  RINGQUERY_TLS      address of a query service with TLS and authentication
  RINGQUERY_CA       CA of its certificate
  PID_SHARD_1, ...   ids of the processes`,
		Example: `  eval "$(bin/demo env)"`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := os.ReadFile(filepath.Join(state.UpDir(), envFile))
			if err != nil {
				return fmt.Errorf("demo up is not running, or still starting: start it with make up: %w", err)
			}

			fmt.Fprint(cmd.OutOrStdout(), string(text))

			return nil
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
