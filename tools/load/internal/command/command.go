// Package command implements the command line of the load tool.
package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/tools/lab/commandline"
	"github.com/clusterring/clusterring/tools/load/internal/floor"
	"github.com/clusterring/clusterring/tools/load/internal/measure/admission"
	"github.com/clusterring/clusterring/tools/load/internal/measure/balance"
	"github.com/clusterring/clusterring/tools/load/internal/measure/handover"
	"github.com/clusterring/clusterring/tools/load/internal/measure/moves"
	"github.com/clusterring/clusterring/tools/load/internal/measure/pods"
	"github.com/clusterring/clusterring/tools/load/internal/measure/relief"
	"github.com/clusterring/clusterring/tools/load/internal/measure/rest"
	"github.com/clusterring/clusterring/tools/load/internal/measure/scaleout"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/points"
	"github.com/clusterring/clusterring/tools/load/internal/report"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/target"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// Main runs the command line of this process and returns its exit code.
func Main() int { return commandline.Run(New()) }

const long = `load measures what sharding costs. It compares each measurement with its floor, the lowest possible cost. Measurement and floor
alternate in the same run, so that other load on the machine affects both equally.

  load run            runs the measurements, and writes a report with tables, plots, and machine-readable figures into a directory
  load evaluate       does the same with other measurements: what load a ring carries with more shards
  load report         writes this report again from the figures of an earlier run
  load noop-webhook   serves a floor: an admission webhook that adds a constant label. "load run" starts it automatically

The tool simulates shards: it holds Leases and acknowledges drains. One machine can hold thousands of shards and hundreds of thousands
of objects.`

// New returns the command.
func New() *cobra.Command {
	root := commandline.Root("load", "Measure what sharding costs, compared with the lowest possible cost", long)
	root.AddCommand(newRun(), newEvaluate(), newReport(), newNoopWebhook())

	return root
}

// Version is the version of the binaries. The linker sets it.
var Version = "unknown"

// runner is one run.
type runner struct {
	scale, only, out string
	rounds           uint
	profile, keeps   bool // keeps points
	binDir, assets   string
	kubeconfig       string // of a cluster to measure on; empty for this machine

	plan  run.Plan
	clock clock.WithTicker
}

func newRun() *cobra.Command {
	// In this order they run.
	return newRunner(&runner{}, filepath.Join("dist", "load"), slices.Concat(
		admission.Measurements(),
		balance.Measurements(),
		moves.Measurements(),
		handover.Measurements(),
		relief.Measurements(),
		rest.Measurements(),
	), &cobra.Command{
		Use:   "run",
		Short: "Measure, and write a report",
		Long: `run starts etcd, an API server, and the four services on this machine, each service with a token of its own service account. It runs
all measurements, writes the report, and stops everything, also on Ctrl-C.

Progress goes to standard error, the report to standard output. Missed targets are reported, but do not change the exit code.
The exit code is 1 if a measurement fails.`,
		Example: `  make bench-load                         all measurements, in at most 35 minutes
  make bench-load SCALE=small             all measurements at a small scale, in 10 minutes
  make bench-load SCALE=million           all measurements, with up to a million objects
  bin/load run --only '^admission-cpu'    selected measurements
  bin/load run --only moves --profile     with profiles of the services, in OUT/pprof`,
	})
}

func newEvaluate() *cobra.Command {
	sharder, r := scaleout.Services, &runner{keeps: true}
	c := newRunner(r, filepath.Join("dist", "evaluate"), slices.Concat(
		admission.Churn(),
		scaleout.Basic(),
		scaleout.Measurements(&sharder),
		scaleout.Chaos(),
	), &cobra.Command{
		Use:   "evaluate",
		Short: "Measure what load a ring carries with more shards, and write a report",
		Long: `evaluate runs shards of a fixed capacity: 12 workers, each of which needs a second for a change. It changes Websites at a rate that does
not depend on how fast they are worked on, and measures what the shards do while all of them are busy, and up to which rate they begin
99 % of the changes within a second and complete them within five. It also measures what a create and an edit cost, what shards cost
beside one process under a load that grows, and whether they keep those times while Pods are killed or replaced all the time. It fails
if two shards worked on one object meanwhile, or an object was left to none.

Each result is a line of JSON in OUT/points-SCALE.jsonl. Those that are there are not measured again, so that a run can be interrupted,
or extended with --rounds. Results under a wrong load or on a busy machine are marked, and measured again by the next run.

With --kubeconfig, it measures on a cluster instead, where each shard is a Pod that may use a tenth of a core, and needs 8 ms of that for
a change. Install the services and the example there before, with images of this version. Nobody else may use that example meanwhile:
its Deployment gets other arguments, a CPU limit, and 1, 2, 3, and 5 replicas. The Deployment is as before afterwards.`,
		Example: `  make evaluate SCALE=small                       1 and 3 shards, in 6 minutes
  make evaluate ARGS=--sharder=embedded           1, 2, 3, 4, 5, and 10 shards, in 8 hours
  make images IMAGE_REPO=registry.example.com/clusterring     to measure on a cluster; it prints how to install them
  make evaluate ARGS=--kubeconfig=FILE            1, 2, 3, and 5 Pods, in 40 minutes`,
	})
	c.Flags().StringVar(&sharder, "sharder", sharder, "who assigns objects: services, plain, static, embedded, none, or external")
	c.Flags().StringVar(&r.kubeconfig, "kubeconfig", "", "`file` with the access to a cluster to measure on")
	c.MarkFlagsMutuallyExclusive("kubeconfig", "sharder")
	c.Flags().Lookup("rounds").Usage = "`number` of repetitions of each measurement (default 1)"
	c.PreRunE = func(*cobra.Command, []string) error {
		if _, known := scaleout.Sharders[sharder]; !known {
			return fmt.Errorf("--sharder: there is no %q; see --help", sharder)
		}

		if r.kubeconfig != "" {
			r.plan.Measurements = pods.Measurements(r.kubeconfig)
		}

		return nil
	}

	return c
}

// newRunner completes a command that runs measurements.
func newRunner(r *runner, out string, measurements []run.Measurement, c *cobra.Command) *cobra.Command {
	r.clock, r.plan = clock.RealClock{}, run.Plan{Measurements: measurements}
	c.Args, c.RunE = cobra.NoArgs, func(c *cobra.Command, _ []string) error { return r.run(c) }

	flags := c.Flags()
	flags.StringVar(&r.scale, "scale", string(run.Small), "`scale` of the measurements: small, full, or million")
	flags.StringVar(&r.only, "only", "", "`regexp` that selects rows and charts by their ids (default all)")
	flags.UintVar(&r.rounds, "rounds", 0, "`number` of rounds of each measurement (default 3 at scale small, else 5)")
	flags.StringVar(&r.out, "out", out, "`directory` of the report")
	flags.BoolVar(&r.profile, "profile", false, "also write CPU and heap profiles of the services and the API server "+
		"for each measurement")
	flags.StringVar(&r.binDir, "bin-dir", "bin", "`directory` with the binaries that make build builds")
	flags.StringVar(&r.assets, "assets", "", "`directory` with etcd and kube-apiserver (default: $KUBEBUILDER_ASSETS, "+
		"else those of make control-plane, built if necessary)")

	return c
}

// validate checks the flags before anything starts.
func (r *runner) validate() error {
	if scale := run.Scale(r.scale); scale != run.Small && scale != run.Full && scale != run.Million {
		return fmt.Errorf("--scale must be %s, %s, or %s, not %q", run.Small, run.Full, run.Million, r.scale)
	}

	if localplane.Root() == "" {
		return errors.New("run this command in the repository: it installs manifests from deploy/")
	}

	r.plan.Rounds = int(r.rounds) //nolint:gosec // far from overflowing

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
	found := &result.Report{Began: r.clock.Now(), Scale: r.scale, Version: Version, Machine: thisMachine()}
	found.Results, err = r.measure(c.Context())

	found.Took = r.clock.Since(found.Began).Round(time.Millisecond).Seconds()
	if len(found.Rows)+len(found.Charts) > 0 && !errors.Is(err, commandline.ErrInterrupted) {
		err = errors.Join(err, write(r.out, found, c.OutOrStdout()))
	}

	return err
}

// thisMachine describes this machine, on systems other than Linux in less detail.
func thisMachine() string {
	text := fmt.Sprintf("%d cores of %s, %s", runtime.GOMAXPROCS(0), runtime.GOARCH, runtime.GOOS)

	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return text
	}

	all, err := fs.CPUInfo()
	memory, memoryErr := fs.Meminfo()

	release, releaseErr := fs.SysctlStrings("kernel.osrelease")
	if err := errors.Join(err, memoryErr, releaseErr); err != nil || len(all) == 0 || memory.MemTotalBytes == nil {
		return text
	}

	return fmt.Sprintf("%d cores of %s, %s GiB of memory, %s %s", runtime.GOMAXPROCS(0), cmp.Or(all[0].ModelName, runtime.GOARCH),
		result.Number(float64(*memory.MemTotalBytes)/(1<<30)), runtime.GOOS, strings.Join(release, " "))
}

// measure starts the system, measures it, and stops it.
func (r *runner) measure(ctx context.Context) (found result.Results, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	b := run.Bench{Scale: run.Scale(r.scale), Clock: r.clock}

	if r.keeps {
		if b.Points, err = points.Open(filepath.Join(r.out, "points-"+r.scale+".jsonl"), Version); err != nil {
			return found, err
		}

		r.plan.Rounds = max(r.plan.Rounds, 1)
	}

	if r.kubeconfig != "" {
		return r.plan.Do(ctx, b)
	}

	if r.assets == "" {
		if r.assets, err = localplane.Binaries(ctx, r.plan.Progress); err != nil {
			return found, err
		}
	}

	b.Local, err = target.Start(ctx, target.Options{
		BinDir: r.binDir, Assets: r.assets, Profile: r.profile, Progress: r.plan.Progress,
	})
	if b.Local != nil {
		defer func() {
			fmt.Fprintln(r.plan.Progress, "==> stopping everything")

			err = errors.Join(err, b.Local.Stop())
		}()
	}

	if err != nil {
		return found, err
	}

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

	if b.Objects, err = objects.New(b.Local.Writer); err != nil {
		return found, err
	}
	defer b.Objects.Close()

	return r.plan.Do(ctx, b)
}

func newReport() *cobra.Command {
	var page string

	c := &cobra.Command{
		Use:   "report FILE.json",
		Short: "Write the report of an earlier run again",
		Long: `report reads the figures that "load run" wrote, and writes tables and plots beside them. With --page, it also replaces the content between the
markers of a Markdown page, and writes the plots into a directory beside the page, with the name of the page.`,
		Example: `  bin/load report dist/load/report.json --page docs/performance.md`,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			data, err := os.ReadFile(args[0])
			if err != nil {
				return fmt.Errorf("open the figures of an earlier run: %w", err)
			}

			found := &result.Report{}
			if err := json.Unmarshal(data, found); err != nil {
				return fmt.Errorf("read the figures of an earlier run: %w", err)
			}

			if page != "" {
				if err := intoPage(page, found); err != nil {
					return err
				}
			}

			return write(filepath.Dir(args[0]), found, c.OutOrStdout())
		},
	}
	c.Flags().StringVar(&page, "page", "", "Markdown `file` to update with the tables and plots")

	return c
}

// intoPage updates the page with the report.
func intoPage(page string, found *result.Report) error {
	before, err := os.ReadFile(page)
	if err != nil {
		return fmt.Errorf("read the page: %w", err)
	}

	dir := strings.TrimSuffix(page, filepath.Ext(page))

	after, err := report.Splice(string(before), found, filepath.Base(dir))
	if err != nil {
		return fmt.Errorf("update %s: %w", page, err)
	}

	pictures, err := report.Pictures(found)
	if err != nil {
		return err
	}

	if err := writeFiles(dir, pictures); err != nil {
		return err
	}

	return writeFiles(filepath.Dir(page), map[string][]byte{filepath.Base(page): []byte(after)})
}

// write writes the report into a directory and its page to out.
func write(dir string, found *result.Report, out io.Writer) error {
	files, err := report.Files(found)
	if err != nil {
		return err
	}

	if err := writeFiles(dir, files); err != nil {
		return err
	}

	fmt.Fprintf(out, "%s\nThe report is in %s.\n", files[report.Page], filepath.Join(dir, report.Page))

	return nil
}

func writeFiles(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create the report directory: %w", err)
	}

	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil { //nolint:gosec // for everybody to read
			return fmt.Errorf("write the report: %w", err)
		}
	}

	return nil
}

func newNoopWebhook() *cobra.Command {
	var o floor.Options

	c := &cobra.Command{
		Use:   "noop-webhook",
		Short: "Serve an admission webhook that adds a constant label",
		Long: `noop-webhook is the floor for the cost of admission. It decodes each review with encoding/json into the Kubernetes types, and
always answers with the same JSON Patch. It serves TLS over HTTP/2 or HTTP/1.1 until it is interrupted.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			err := floor.Serve(c.Context(), o)
			if err == nil && errors.Is(context.Cause(c.Context()), commandline.ErrInterrupted) {
				return nil // the regular end
			}

			return err
		},
	}
	flags := c.Flags()
	flags.StringVar(&o.Address, "bind-address", "127.0.0.1:9443", "`address` to listen on")
	flags.StringVar(&o.CertFile, "tls-cert-file", "", "PEM `file` with the certificate")
	flags.StringVar(&o.KeyFile, "tls-private-key-file", "", "PEM `file` with its private key")
	flags.StringVar(&o.Label, "label", "noop.example.com/shard", "`key` of the label")
	flags.StringVar(&o.Value, "value", "a", "`value` of the label")

	return c
}
