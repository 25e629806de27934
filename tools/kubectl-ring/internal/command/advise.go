package command

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/advise"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/render"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/scrape"
)

const adviseLong = `Advise whether it is time to shard a controller, or to shard it more, and what limits it otherwise.

The metrics that every controller of controller-runtime serves are read twice, --for apart. The controller needs no change, no ring, and
no service of ClusterRing. Name all processes of the controller: its replicas, or its shards. docs/when-to-shard.md explains the verdicts.

--metrics reads URLs. It sends nothing of the kubeconfig, only the token in --token-file, and that to other machines only over TLS that
is verified (--ca-file, --server-name). --pods reads ready pods through the API server, with your permissions to list pods and to get
pods/proxy in the namespace. Metrics that need TLS or a token cannot be read that way: use kubectl port-forward and --metrics.

Exit codes: 0 all controllers are fine, 1 one is not, 2 the metrics could not be read.`

const adviseExample = `  kubectl ring advise --pods app=website-operator -n operators --for 5m
  kubectl ring advise --metrics http://127.0.0.1:8080/metrics
  kubectl ring advise --metrics https://localhost:8443 --ca-file ca.crt --token-file token`

// adviser are the flags of advise.
type adviser struct {
	urls             []string
	tokenFile        string
	pods             scrape.Pods
	cpu              resource.QuantityValue
	interval, target time.Duration
	output           *output
}

func (a *app) advise() *cobra.Command {
	f := &adviser{}
	cmd := &cobra.Command{
		Use:   "advise (--metrics URL... | --pods SELECTOR) [flags]",
		Short: "Advise whether it is time to shard a controller, and what limits it",
		Long:  adviseLong, Example: adviseExample,
		Args: arguments(0, 0), ValidArgsFunction: cobra.NoFileCompletions,
		// This replaces the hook of the root: the variables are about ringquery, and set flags that advise uses for
		// --metrics.
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.connect.Validate() },
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch help := "see " + cmd.CommandPath() + " --help"; {
			case (len(f.urls) > 0) == (f.pods.Selector != ""):
				return failure.New(help, "use either --metrics or --pods")
			case f.interval < time.Second || f.target <= 0:
				return failure.New(help, "name 1s or more with --for, and more than 0s with --target-p99")
			}

			return a.adviseOn(cmd.Context(), f)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.urls, "metrics", nil,
		"`URL` of the metrics of a process, http or https; repeat it for several processes; without a path, /metrics")
	flags.StringVar(&f.tokenFile, "token-file", "", "`file` with a bearer token for the URLs; by default, none is sent")
	flags.StringVar(&f.pods.Selector, "pods", "",
		"label `selector` of the pods of the controller, which are read through the API server")
	flags.StringVar(&f.pods.Port, "port", "8080", "`number or name` of the pods' port for metrics")
	flags.Var(&f.cpu, "cpu-limit", "`cores` that a process may use, such as 500m; by default, the limit of its "+
		"container, or else GOMAXPROCS of the process")
	flags.DurationVar(&f.interval, "for", 30*time.Second, "how long to observe; longer is more exact")
	flags.DurationVar(&f.target, "target-p99", time.Second, "how long 99 % of the objects may wait in the queue")

	for _, name := range []string{"metrics", "pods", "port", "for", "target-p99", "cpu-limit"} {
		complete(cmd, name, cobra.NoFileCompletions)
	}

	cmd.MarkFlagsMutuallyExclusive("pods", "token-file")
	cmd.MarkFlagsMutuallyExclusive("metrics", "port")

	f.output = a.addOutput(cmd, asJSON, asYAML)

	return cmd
}

// adviseOn reads the metrics twice, and prints the advice.
func (a *app) adviseOn(ctx context.Context, f *adviser) error {
	readings, err := a.observe(ctx, f)
	if err != nil {
		return err
	}

	report, err := advise.Advise(readings, f.target)
	if err != nil {
		return err
	}

	if !f.output.forProgram() {
		err = a.printAdvice(f.output, report)
	} else {
		var text []byte
		if text, err = json.Marshal(report); err == nil {
			err = f.output.emit(text)
		}
	}

	if err == nil && slices.ContainsFunc(report.Controllers, func(c advise.Controller) bool {
		return c.Verdict != advise.Fine
	}) {
		return errProblem
	}

	return err
}

// targets returns the processes to read.
func (a *app) targets(ctx context.Context, f *adviser) ([]scrape.Target, error) {
	timeout, err := clientcmd.ParseTimeout(*a.kube.Timeout)
	if err != nil {
		return nil, failure.New("write it as in 10s", "--request-timeout: %w", err)
	}

	timeout = cmp.Or(timeout, 20*time.Second)

	if len(f.urls) > 0 {
		return scrape.URLs(f.urls, &rest.Config{UserAgent: a.connect.UserAgent, Timeout: timeout,
			TLSClientConfig: rest.TLSClientConfig{
				CAFile: a.connect.CAFile, ServerName: a.connect.ServerName, Insecure: a.connect.Insecure,
			}}, f.tokenFile)
	}

	config, err := a.config()
	if err == nil && config == nil {
		err = failure.New("set KUBECONFIG or --kubeconfig, or name URLs with --metrics",
			"there is no kubeconfig, so --pods cannot be found in a cluster")
	}

	if err != nil {
		return nil, err
	}

	if f.pods.Namespace, err = a.namespace(); err != nil {
		return nil, err
	}

	config.UserAgent, config.Timeout = a.connect.UserAgent, timeout

	return f.pods.Find(ctx, config)
}

// observe reads the pages of the processes at two times.
func (a *app) observe(ctx context.Context, f *adviser) ([]advise.Reading, error) {
	targets, err := a.targets(ctx, f)
	if err != nil {
		return nil, err
	}

	readings, began := make([]advise.Reading, len(targets)), make([]time.Time, len(targets))

	for i, t := range targets {
		r := &readings[i]
		r.Name, r.CPULimit = t.Name, cmp.Or(f.cpu.AsApproximateFloat64(), t.CPULimit)

		if r.Before, err = t.Read(ctx); err != nil {
			return nil, err
		}

		began[i] = a.Clock.Now()
	}

	if err := advise.Check(readings); err != nil {
		return nil, err
	}

	fmt.Fprintf(a.Err, "The metrics were read. They are read again in %s.\n", f.interval)

	timer := a.Clock.NewTimer(f.interval)
	defer timer.Stop()

	select {
	case <-ctx.Done():
		return nil, failure.New("", "interrupted while the controller was observed: %w", context.Cause(ctx))
	case <-timer.C():
	}

	for i, t := range targets {
		if readings[i].After, err = t.Read(ctx); err != nil {
			return nil, err
		}

		readings[i].Elapsed = a.Clock.Since(began[i])
	}

	return readings, nil
}

// printAdvice prints the advice for people: what was measured, then why.
func (a *app) printAdvice(o *output, report *advise.Report) error {
	table := o.table([]string{
		"CONTROLLER", "PROCESSES", "WORKERS", "BUSY", "CPU", "RECONCILES/S", "MEAN", "QUEUE P50", "QUEUE P99", "VERDICT",
	})
	for _, c := range report.Controllers {
		table.Row(c.Name, c.Processes, c.WorkersPerProcess, render.Percent(c.Busy), render.Percent(c.CPU),
			fmt.Sprintf("%.1f", c.ReconcilesPerSecond),
			advise.Seconds(c.ReconcileMeanSeconds), advise.Seconds(c.QueueP50Seconds), advise.Seconds(c.QueueP99Seconds),
			string(c.Verdict))
	}

	if err := table.Flush(); err != nil {
		return err
	}

	fmt.Fprintln(a.Out)

	for _, c := range report.Controllers {
		mark := render.Good.Paint("✓", a.colour)
		if c.Verdict != advise.Fine {
			mark = render.Bad.Paint("✗", a.colour)
		}

		fmt.Fprintf(a.Out, "%s %s: %s\n", mark, a.paint(render.Bold, failure.Clean(c.Name)), c.Reason)

		if c.Do != "" {
			fmt.Fprintf(a.Out, "  → %s\n", c.Do)
		}
	}

	return nil
}
