package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/demo/internal/scenario"
	"github.com/clusterring/clusterring/tools/demo/internal/state"
)

const (
	servedShards  = 3
	servedObjects = 50
)

var shardLabel = v1alpha1.ShardLabel(localsystem.Ring)

// server runs the system for a user: for people, as the background process of demo up, or for demo docs.
type server struct {
	common
	registry state.Registry
	console  *report.Console
}

// newServe returns the command that demo up runs in the background.
func newServe(registry state.Registry) *cobra.Command {
	s := &server{registry: registry}
	c := &cobra.Command{
		Use:    "serve",
		Short:  "Run everything until a signal; demo up starts this in the background",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s.console = report.NewConsole(c.OutOrStdout())
			return s.run(c.Context(), state.Up, s.stay)
		},
	}
	s.add(c.Flags(), defaultUpDir())

	return c
}

// user uses the running system, and returns when the system may stop.
type user func(ctx context.Context, stateDir string, how *usage) error

// run runs the system for the user, and leaves nothing behind.
func (s *server) run(ctx context.Context, kind state.Kind, use user) error {
	if err := s.prepare(ctx, "kubectl"); err != nil {
		return err
	}

	claim, err := s.registry.Claim(kind, s.stateDir)
	if err != nil {
		return err
	}

	err = s.serve(ctx, claim.Dir, use)
	ctx = context.WithoutCancel(ctx)

	return errors.Join(err, state.Discard(ctx, claim.Dir), claim.Release(false))
}

// serve runs the system until the user returns.
func (s *server) serve(ctx context.Context, stateDir string, use user) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	sys, err := localsystem.Start(ctx, s.options(stateDir, s.console))
	if sys != nil {
		defer func() {
			cancel() // stop watching before the system stops

			err = errors.Join(err, sys.Stop())
		}()
	}

	if err != nil {
		return err
	}

	story, err := scenario.New(ctx, sys, s.console, scenario.Options{Shards: servedShards, Objects: servedObjects})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, story.Close()) }()

	if err := story.Prologue(ctx); err != nil {
		return err
	}

	how, err := s.usage(ctx, sys)
	if err != nil {
		return err
	}

	return use(ctx, stateDir, how)
}

// usage returns how to use the running system.
func (s *server) usage(ctx context.Context, sys *localsystem.System) (*usage, error) {
	next := fmt.Sprintf("shard-%d", servedShards+1)

	kubeconfig, err := sys.ShardKubeconfig(ctx, next)
	if err != nil {
		return nil, err
	}

	guarded, ca := sys.GuardedQueryAddress()

	how := &usage{
		Variables: []variable{
			{"KUBECONFIG", sys.Plane.Kubeconfig()}, {"RINGQUERY", sys.QueryAddress()}, {"RINGQUERY_TLS", guarded}, {"RINGQUERY_CA", ca},
		},
		Path: []string{sys.BinDir, sys.Plane.BinDir()},
		MoreShards: []string{
			filepath.Join(sys.BinDir, "example"), "--kubeconfig=" + kubeconfig, "--shard-name=" + next,
			"--lease-namespace=" + localsystem.ShardNamespace, "--lease-duration=" + localsystem.LeaseDuration.String(),
			"--metrics-bind-address=0", "--health-probe-bind-address=0",
		},
	}
	for _, p := range sys.Processes() {
		how.Variables = append(how.Variables, variable{"PID_" + strings.ToUpper(strings.ReplaceAll(p.Name, "-", "_")), strconv.Itoa(p.PID())})
	}

	return how, nil
}

// stay writes the usage file, which also reports that everything is ready, and waits until ctx ends.
func (s *server) stay(ctx context.Context, stateDir string, how *usage) error {
	content, err := json.MarshalIndent(how, "", "  ")
	if err != nil {
		return fmt.Errorf("encode how to use the demo: %w", err)
	}
	// A reader that sees the file can read all of it.
	temporary := filepath.Join(stateDir, usageFile+".new")
	if err := os.WriteFile(temporary, content, 0o600); err != nil {
		return fmt.Errorf("write how to use the demo: %w", err)
	}

	if err := os.Rename(temporary, filepath.Join(stateDir, usageFile)); err != nil {
		return fmt.Errorf("write how to use the demo: %w", err)
	}
	// From here on, processes may end: users are invited to kill some.
	<-ctx.Done()

	return nil
}
