package command

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/tools/lab/commandline"
	"github.com/clusterring/clusterring/tools/load/internal/machine"
	"github.com/clusterring/clusterring/tools/load/internal/measure/admission"
	"github.com/clusterring/clusterring/tools/load/internal/measure/balance"
	"github.com/clusterring/clusterring/tools/load/internal/measure/continuity"
	"github.com/clusterring/clusterring/tools/load/internal/measure/handover"
	"github.com/clusterring/clusterring/tools/load/internal/measure/moves"
	"github.com/clusterring/clusterring/tools/load/internal/measure/rest"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/target"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// Version is the version of the binaries. The linker sets it.
var Version = "unknown"

// connections is the number of HTTP/2 connections that the tool writes over.
const connections = 4

// runner is one run.
type runner struct {
	scale, only, out string
	rounds           int
	profile          bool
	binDir, assets   string

	plan  run.Plan
	clock clock.WithTicker
}

func newRun() *cobra.Command {
	r := &runner{clock: clock.RealClock{}}
	c := &cobra.Command{
		Use:   "run",
		Short: "Measure, and write a report",
		Long: `run starts etcd, an API server, and the four services on this machine, each service with a token of its own service account. It runs
all measurements, writes the report, and stops everything, also on Ctrl-C.

Progress goes to standard error, the table of results to standard output. Missed targets are reported, but do not change the exit code.
The exit code is 1 if a measurement fails.`,
		Example: `  make bench-load                         all measurements, in at most 32 minutes
  make bench-load SCALE=small             all measurements at a small scale, in 10 minutes
  make bench-load SCALE=million           all measurements, with up to a million objects
  bin/load run --only '^admission-cpu'    selected measurements
  bin/load run --only moves --profile     with profiles of the services, in OUT/pprof`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return r.run(c) },
	}
	flags := c.Flags()
	flags.StringVar(&r.scale, "scale", string(run.Small), "`scale` of the measurements: small, full, or million")
	flags.StringVar(&r.only, "only", "", "`regexp` that selects rows and series by their ids (default all)")
	flags.IntVar(&r.rounds, "rounds", 0, "`number` of rounds of each measurement (default 3 at scale small, else 5)")
	flags.StringVar(&r.out, "out", filepath.Join("dist", "load"), "`directory` of the report")
	flags.BoolVar(&r.profile, "profile", false, "also write CPU and heap profiles of the services and the API server for each measurement")
	flags.StringVar(&r.binDir, "bin-dir", "bin", "`directory` with the binaries that make build builds")
	flags.StringVar(&r.assets, "assets", "", "`directory` with etcd and kube-apiserver (default: $KUBEBUILDER_ASSETS, else those of make control-plane, built if necessary)")

	return c
}

// validate checks the flags before anything starts.
func (r *runner) validate() error {
	if scale := run.Scale(r.scale); scale != run.Small && scale != run.Full && scale != run.Million {
		return fmt.Errorf("--scale must be %s, %s, or %s, not %q", run.Small, run.Full, run.Million, r.scale)
	}

	if r.rounds < 0 {
		return fmt.Errorf("--rounds must not be negative: %d", r.rounds)
	}

	if localplane.Root() == "" {
		return errors.New("run this command in the repository: it installs manifests from deploy/")
	}

	r.plan.Rounds = r.rounds
	// In this order they run.
	r.plan.Measurements = slices.Concat(
		admission.Measurements(),
		balance.Measurements(),
		moves.Measurements(),
		handover.Measurements(),
		continuity.Measurements(),
		rest.Measurements(),
	)

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
			return fmt.Errorf("resolve a directory: %w", err)
		}
	}

	r.plan.Progress = c.ErrOrStderr()
	found := &result.Report{Began: r.clock.Now(), Scale: r.scale, Version: Version, Machine: machine.This()}
	found.Rows, found.Series, err = r.measure(c.Context())

	found.Took = r.clock.Since(found.Began).Round(time.Millisecond).Seconds()
	if len(found.Rows)+len(found.Series) > 0 && !errors.Is(err, commandline.ErrInterrupted) {
		err = errors.Join(err, write(r.out, found, c.OutOrStdout()))
	}

	return err
}

// measure starts the system, measures it, and stops it.
func (r *runner) measure(ctx context.Context) (rows []result.Row, series []result.Series, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	b := run.Bench{Scale: run.Scale(r.scale), Clock: r.clock}

	if r.assets == "" {
		if r.assets, err = localplane.Binaries(ctx, r.plan.Progress); err != nil {
			return nil, nil, err
		}
	}

	b.Local, err = target.Start(ctx, target.Options{BinDir: r.binDir, Assets: r.assets, Profile: r.profile, Progress: r.plan.Progress})
	if b.Local != nil {
		defer func() {
			fmt.Fprintln(r.plan.Progress, "==> stopping everything")

			err = errors.Join(err, b.Local.Stop())
		}()
	}

	if err != nil {
		return nil, nil, err
	}

	b.System = b.Local.System

	go func() {
		select {
		case died := <-b.Local.Died():
			cancel(died)
		case <-ctx.Done():
		}
	}()

	if r.profile {
		dir := filepath.Join(r.out, "pprof")
		r.plan.Profile = func(ctx context.Context, name string) func() error { return b.Local.Profile(ctx, dir, name) }
	}

	if b.Objects, err = objects.New(b.System.Writer, connections); err != nil {
		return nil, nil, err
	}
	defer b.Objects.Close()

	return r.plan.Do(ctx, b)
}
