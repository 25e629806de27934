package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/demo/internal/scenario"
	"github.com/clusterring/clusterring/tools/demo/internal/state"
	"github.com/clusterring/clusterring/tools/demo/internal/system"
)

const (
	servedShards  = 3
	servedObjects = 50
)

var shardLabel = v1alpha1.ShardLabel(system.Ring)

// server is the supervisor that demo up leaves behind.
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
		Short:  "Run everything until told to stop; demo up starts this in the background",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s.console = report.NewConsole(c.OutOrStdout())
			return s.run(c.Context())
		},
	}
	s.add(c.Flags(), defaultUpDir())
	return c
}

func (s *server) run(ctx context.Context) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	claim, err := s.registry.Claim(state.Up, s.stateDir)
	if err != nil {
		return err
	}
	err = s.serve(ctx, claim.Dir)
	ctx = context.WithoutCancel(ctx)
	return errors.Join(err, state.Discard(ctx, claim.Dir), claim.Release(false))
}

// serve runs everything until the context ends.
func (s *server) serve(ctx context.Context, stateDir string) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sys, err := system.Start(ctx, s.options(stateDir, s.console))
	if sys != nil {
		defer func() {
			cancel() // nobody shall watch what goes away
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
	if err := s.writeUsage(ctx, sys, stateDir); err != nil {
		return err
	}
	// From here on a process that ends is none of our business: people are invited to kill some.
	<-ctx.Done()
	return nil
}

// writeUsage writes down how to use what runs, which says that everything does.
func (s *server) writeUsage(ctx context.Context, sys *system.System, stateDir string) error {
	kubeconfig, err := sys.ShardKubeconfig(ctx)
	if err != nil {
		return err
	}
	how := usage{
		Kubeconfig: sys.Plane.Kubeconfig(),
		Kubectl:    filepath.Join(sys.Plane.BinDir(), "kubectl"),
		Processes:  map[string]int{},
		MoreShards: []string{
			filepath.Join(sys.BinDir, "example"), "--kubeconfig=" + kubeconfig, fmt.Sprintf("--shard-name=shard-%d", servedShards+1),
			"--lease-namespace=" + system.ShardNamespace, "--lease-duration=" + system.LeaseDuration.String(),
			"--metrics-bind-address=0", "--health-probe-bind-address=0",
		},
	}
	for _, q := range scenario.Queries() {
		how.Grpcurl = append(how.Grpcurl, append([]string{filepath.Join(sys.BinDir, "grpcurl")}, q.Args(sys.QueryAddress())...))
	}
	for _, p := range sys.Processes() {
		how.Processes[p.Name] = p.PID()
	}
	content, err := json.MarshalIndent(how, "", "  ")
	if err != nil {
		return fmt.Errorf("encode how to use the demo: %w", err)
	}
	// Whoever sees the file may read it at once.
	temporary := filepath.Join(stateDir, usageFile+".new")
	if err := os.WriteFile(temporary, content, 0o600); err != nil {
		return fmt.Errorf("write how to use the demo: %w", err)
	}
	if err := os.Rename(temporary, filepath.Join(stateDir, usageFile)); err != nil {
		return fmt.Errorf("write how to use the demo: %w", err)
	}
	return nil
}
