package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/tools/lab/commandline"
	"github.com/clusterring/clusterring/tools/lab/localplane"
	"github.com/clusterring/clusterring/tools/load/internal/machine"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

// Version is that of the binaries. The linker sets it.
var Version = "unknown"

// connections is how many HTTP/2 connections the tool writes over.
const connections = 4

// runner is one run.
type runner struct {
	scale, only, out, kubeconfig string
	rounds                       int
	profile                      bool
	binDir, assets               string

	plan  run.Plan
	clock clock.WithTicker
}

func newRun() *cobra.Command {
	r := &runner{clock: clock.RealClock{}}
	c := &cobra.Command{
		Use:   "run",
		Short: "Measure, and write a report",
		Long: `run starts etcd, an API server and the four services on this machine, each service with a token of its own service account, makes
all measurements, writes the report and stops everything, also on Ctrl-C. With --kubeconfig it measures a cluster where the services
are installed; what needs processes of this machine is left out then.

Progress is shown on standard error, the table of results on standard output. A target that is missed is a result like any other: the
exit code is not 0 only if a measurement could not be made.`,
		Example: `  make bench-load                         everything, in at most 25 minutes
  make bench-load SCALE=small             a first look, in 4 minutes
  make bench-load SCALE=million           everything, and a million objects
  bin/load run --only '^admission-cpu'    some of it
  bin/load run --only moves --profile     with profiles of the services, in OUT/pprof`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return r.run(c) },
	}
	flags := c.Flags()
	flags.StringVar(&r.scale, "scale", string(run.Small), "how much is measured: small, full or million")
	flags.StringVar(&r.only, "only", "", "`regexp` of the ids of rows and series to measure; default all")
	flags.IntVar(&r.rounds, "rounds", 0, "`number` of rounds of each measurement; default 3 if small, 5 if full")
	flags.StringVar(&r.out, "out", filepath.Join("dist", "load"), "`directory` that gets the report")
	flags.StringVar(&r.kubeconfig, "kubeconfig", "", "`file` that leads to a cluster to be measured; default a control plane on this machine")
	flags.BoolVar(&r.profile, "profile", false, "write profiles of the services' and the API server's CPU and heap during each measurement, too")
	flags.StringVar(&r.binDir, "bin-dir", "bin", "`directory` with the binaries that make build makes")
	flags.StringVar(&r.assets, "assets", "", "`directory` with etcd and kube-apiserver (default: $KUBEBUILDER_ASSETS, else those of make control-plane, which are built if need be)")
	return c
}

// validate checks what can be checked before anything is started.
func (r *runner) validate() error {
	if scale := run.Scale(r.scale); scale != run.Small && scale != run.Full && scale != run.Million {
		return fmt.Errorf("--scale must be %s, %s or %s, not %q", run.Small, run.Full, run.Million, r.scale)
	}
	if r.rounds < 0 {
		return fmt.Errorf("--rounds must not be negative, but is %d", r.rounds)
	}
	if r.profile && r.kubeconfig != "" {
		return errors.New("--profile needs services on this machine, and --kubeconfig measures a cluster: give one of them")
	}
	if r.kubeconfig == "" && localplane.Root() == "" {
		return errors.New("run this in the repository: the manifests that it installs are in deploy/")
	}
	r.plan.Measurements, r.plan.Rounds = measurements(), r.rounds
	if r.only != "" {
		only, err := regexp.Compile(r.only)
		if err != nil {
			return fmt.Errorf("--only: %w", err)
		}
		r.plan.Only = only
	}
	_, err := r.plan.Selected()
	return err
}

func (r *runner) run(c *cobra.Command) error {
	if err := r.validate(); err != nil {
		return err
	}
	var err error
	for _, path := range []*string{&r.out, &r.binDir} {
		if *path, err = filepath.Abs(*path); err != nil {
			return fmt.Errorf("find a directory: %w", err)
		}
	}
	r.plan.Progress = c.ErrOrStderr()
	found := &result.Report{Began: r.clock.Now(), Scale: r.scale, Version: Version, Machine: machine.This()}
	found.Rows, found.Series, err = r.measure(c.Context())
	found.Took = r.clock.Since(found.Began).Round(time.Millisecond)
	if len(found.Rows)+len(found.Series) > 0 && !errors.Is(err, commandline.ErrInterrupted) {
		err = errors.Join(err, write(r.out, found, c.OutOrStdout()))
	}
	return err
}

// measure starts or finds what is measured, measures it and stops it.
func (r *runner) measure(ctx context.Context) (rows []result.Row, series []result.Series, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stopping := func(stop func() error) {
		fmt.Fprintln(r.plan.Progress, "==> stopping everything")
		err = errors.Join(err, stop())
	}
	if r.kubeconfig != "" {
		s, err := target.Connect(ctx, r.kubeconfig)
		if s != nil {
			defer stopping(s.Stop)
		}
		if err != nil {
			return nil, nil, err
		}
		return r.do(ctx, run.Bench{System: s})
	}
	local, err := r.start(ctx)
	if local != nil {
		defer stopping(local.Stop)
	}
	if err != nil {
		return nil, nil, err
	}
	go func() {
		select {
		case died := <-local.Died():
			cancel(died)
		case <-ctx.Done():
		}
	}()
	if r.profile {
		dir := filepath.Join(r.out, "pprof")
		r.plan.Profile = func(ctx context.Context, name string) func() error { return local.Profile(ctx, dir, name) }
	}
	return r.do(ctx, run.Bench{System: local.System, Local: local})
}

// start starts what is measured on this machine.
func (r *runner) start(ctx context.Context) (*target.Local, error) {
	if r.assets == "" {
		assets, err := localplane.Binaries(ctx, os.Stderr)
		if err != nil {
			return nil, err
		}
		r.assets = assets
	}
	return target.Start(ctx, target.Options{BinDir: r.binDir, Assets: r.assets, Profile: r.profile, Progress: r.plan.Progress})
}

// do measures what is running.
func (r *runner) do(ctx context.Context, b run.Bench) ([]result.Row, []result.Series, error) {
	writer, err := objects.New(b.System.Writer, connections)
	if err != nil {
		return nil, nil, err
	}
	defer writer.Close()
	b.Objects, b.Scale, b.Clock = writer, run.Scale(r.scale), r.clock
	return r.plan.Do(ctx, b)
}
