package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/scenario"
	"github.com/clusterring/clusterring/tools/demo/internal/state"
	"github.com/clusterring/clusterring/tools/testkit/process"
)

const (
	servedShards  = 3
	servedObjects = 50
)

// server runs the system for a user: for people, as the background process of demo up, or for demo docs.
type server struct{ *common }

// newServe returns the command that demo up runs in the background.
func (c *common) newServe() *cobra.Command {
	s := &server{c}
	cmd := &cobra.Command{
		Use:    "serve",
		Short:  "Run everything until a signal; demo up starts this in the background",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			signal.Ignore(syscall.SIGPIPE) // demo up may be killed

			s.stateDir = cmp.Or(s.stateDir, defaultUpDir())

			return s.run(cmd.Context(), state.Up, s.stay)
		},
	}
	s.add(cmd.Flags(), defaultUpDir())

	return cmd
}

// run runs the system with some shards and objects until use returns, and leaves nothing behind.
func (s *server) run(ctx context.Context, kind state.Kind, use func(context.Context, *localsystem.System) error) error {
	if err := s.prepare(ctx, "kubectl"); err != nil {
		return err
	}

	claim, err := s.registry.Claim(kind, s.stateDir)
	if err != nil {
		return err
	}

	err = localsystem.Run(ctx, s.options(claim.Dir), func(ctx context.Context, sys *localsystem.System) error {
		story, err := scenario.New(ctx, sys, s.console, scenario.Options{Shards: servedShards, Objects: servedObjects})
		if err != nil {
			return err
		}

		if err := story.Prologue(ctx); err != nil {
			return err
		}

		return use(ctx, sys)
	})
	ctx = context.WithoutCancel(ctx)

	return errors.Join(err, state.Discard(ctx, claim.Dir), claim.Release(false))
}

// stay saves how to use the system, ends the output, so that demo up knows that everything is ready, and waits until ctx ends.
func (s *server) stay(ctx context.Context, sys *localsystem.System) error {
	usage, err := s.usage(ctx, sys)
	if err != nil {
		return err
	}

	if err := errors.Join(save(sys.StateDir, envFile, exports(sys)), save(sys.StateDir, usageFile, usage), endOutput()); err != nil {
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
func (s *server) usage(ctx context.Context, sys *localsystem.System) (string, error) {
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
		"{DEMO}", process.Quote(filepath.Join(s.binDir, "demo")), "{DIR}", sys.StateDir, "{QUERIES}", queries.String(),
		"{STATE}", contract.LabelState, "{RING}", contract.ShardLabel(localsystem.Ring), "{DEATH}", (2 * localsystem.LeaseDuration).String(),
		"{SHARD}", process.Quote(
			filepath.Join(sys.BinDir, "example"), "--kubeconfig="+kubeconfig, "--shard-name="+next, "--lease-namespace="+localsystem.ShardNamespace,
			"--lease-duration="+localsystem.LeaseDuration.String(), "--metrics-bind-address=0", "--health-probe-bind-address=0"),
	).Replace(usageText), nil
}
