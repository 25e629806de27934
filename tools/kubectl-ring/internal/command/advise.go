package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/advise"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/scrape"
)

const adviseLong = `Advise whether it is time to shard a controller: what limits it now, and how many shards a target needs.

The metrics that every controller of controller-runtime serves are read twice, --for apart. The controller needs no change, no ring, and
no service of ClusterRing. Name all processes of the controller: its replicas, or its shards.

What limits a controller
  CPU               its process has too little CPU: shards help
  Workers           MaxConcurrentReconciles is too low: more workers help, and need no shards
  ClientRateLimit   the client of the process waits for its own limit, QPS and Burst
  APIServer         the API server refuses requests (429), by its priority and fairness
  Errors            reconciles that fail are tried again and again
  HotObject         one object changes all the time; one worker at a time reconciles it
  Bursts            workers are free, but work comes in bursts that wait
  SlowReconciles    a reconcile alone takes longer than the target
  Stuck             reconciles run, but none ended in the interval
  Fine, Idle        nothing does

The target is the 99th percentile of the time from an event to the end of its reconcile. How many shards or workers meet it is computed
with a model of queues, whose assumptions are printed. docs/when-to-shard.md explains the advice, and what it cannot know.

How metrics are read
  --metrics reads URLs. It sends nothing of the kubeconfig, only the token in --token-file, and that to other machines only over TLS that
  is verified (--ca-file, --server-name). --pods reads ready pods through the API server, with your permissions to list pods and to get
  pods/proxy in the namespace. Metrics that need a token cannot be read that way: use kubectl port-forward and --metrics.

Exit codes: 0 no controller has a problem, 1 a controller has one, 2 the metrics could not be read.`

const adviseExample = `  # the replicas of a controller, through the API server
  kubectl ring advise --pods app=website-operator -n operators

  # would it stand three times the load, with 99 % of the events done within 500 ms
  kubectl ring advise --pods app=website-operator -n operators --growth 3 --target-p99 500ms --for 5m

  # a process on this machine, and protected metrics behind kubectl port-forward
  kubectl ring advise --metrics http://127.0.0.1:8080/metrics
  kubectl ring advise --metrics https://localhost:8443 --ca-file ca.crt --token-file token

  # how many shards are needed
  kubectl ring advise --pods app=website-operator -n operators -o json | jq .conclusion.shards`

// adviser are the flags of advise.
type adviser struct {
	urls      []string
	tokenFile string
	pods      scrape.Pods
	interval  time.Duration
	question  advise.Question
	cpuLimit  string
	cores     float64
	timeout   time.Duration
	output    *output
}

func (a *app) advise() *cobra.Command {
	f := &adviser{}
	cmd := &cobra.Command{
		Use:     "advise (--metrics URL... | --pods SELECTOR) [flags]",
		Short:   "Advise whether it is time to shard a controller, and what limits it",
		Long:    adviseLong,
		Example: adviseExample,
		Args:    arguments(0, 0), ValidArgsFunction: cobra.NoFileCompletions,
		// This replaces the hook of the root: the variables are about ringquery, and set flags that advise refuses or uses for --metrics.
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.connect.Validate() },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.validate(cmd, *a.kube.Timeout); err != nil {
				return err
			}

			return a.adviseOn(cmd.Context(), f)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.urls, "metrics", nil, "`URL` of the metrics of a process, http or https; repeat it for several processes; without a path, /metrics")
	flags.StringVar(&f.tokenFile, "token-file", "", "`file` with a bearer token for the URLs; by default, none is sent")
	flags.StringVar(&f.pods.Selector, "pods", "", "label `selector` of the pods of the controller, which are read through the API server")
	flags.StringVar(&f.pods.Port, "port", "8080", "`number or name` of the pods' port for metrics")
	flags.StringVar(&f.pods.Path, "path", "/metrics", "`path` of the pods' metrics")
	flags.StringVar(&f.pods.Scheme, "scheme", "http", "`scheme` of the pods' metrics: http or https")
	flags.DurationVar(&f.interval, "for", 30*time.Second, "how long to observe, from 1s to 24h; longer is more exact")
	flags.DurationVar(&f.question.TargetP99, "target-p99", time.Second, "how long 99 % of the events may take until their reconcile ends, from 1ms to 24h")
	flags.Float64Var(&f.question.Growth, "growth", 1, "`factor` of the load to plan for, from 1 to 1000")
	flags.StringVar(&f.cpuLimit, "cpu-limit", "", "`cores` that a process may use, such as 500m; by default, the limit of its container, or else GOMAXPROCS of the process")
	complete(cmd, "scheme", cobra.FixedCompletions([]string{"http", "https"}, cobra.ShellCompDirectiveNoFileComp))

	for _, name := range []string{"metrics", "pods", "port", "path", "for", "target-p99", "growth", "cpu-limit"} {
		complete(cmd, name, cobra.NoFileCompletions)
	}

	f.output = a.addOutput(cmd, asWide, asJSON, asYAML)

	return cmd
}

// validate checks the flags. timeout is the global flag.
func (f *adviser) validate(cmd *cobra.Command, timeout string) error {
	flags := cmd.Flags()
	for _, name := range []string{"endpoint", "plaintext", "service-account", "service-namespace"} {
		if flags.Changed(name) {
			return failure.New("omit it", "--%s is about ringquery, which advise does not ask", name)
		}
	}

	if (len(f.urls) > 0) == flags.Changed("pods") {
		return failure.New("see "+cmd.CommandPath()+" --help", "use either --metrics or --pods")
	}

	excluded, by := []string{"port", "path", "scheme"}, "--pods"
	if flags.Changed("pods") {
		excluded, by = []string{"token-file", "ca-file", "server-name", "insecure-skip-tls-verify"}, "--metrics"
	}

	for _, name := range excluded {
		if flags.Changed(name) {
			return failure.New("omit it", "--%s needs %s", name, by)
		}
	}

	if err := f.validateNumbers(); err != nil {
		return err
	}

	limit, err := clientcmd.ParseTimeout(timeout)
	if err != nil {
		return failure.New("write it as in 10s", "--request-timeout: %w", err)
	}

	f.timeout = limit

	if flags.Changed("pods") {
		return f.pods.Validate()
	}

	return nil
}

// validateNumbers checks the flags with numbers.
func (f *adviser) validateNumbers() error {
	const (
		longest     = 24 * time.Hour
		most        = 1000 // times the load
		mostCores   = 4096
		leastTarget = time.Millisecond
	)

	switch {
	case f.interval < time.Second || f.interval > longest:
		return failure.New("name from 1s to 24h", "--for: %s is not a useful time", f.interval)
	case f.question.TargetP99 < leastTarget || f.question.TargetP99 > longest:
		return failure.New("name from 1ms to 24h", "--target-p99: %s is not a useful time", f.question.TargetP99)
	case !(f.question.Growth >= 1 && f.question.Growth <= most):
		return failure.New("name from 1 to 1000", "--growth: %v is not a useful factor", f.question.Growth)
	case f.cpuLimit == "":
		return nil
	}

	quantity, err := resource.ParseQuantity(f.cpuLimit)
	if err != nil {
		return failure.New("write it as in 500m or 2", "--cpu-limit: %w", err)
	}

	f.cores = quantity.AsApproximateFloat64()
	if !(f.cores > 0 && f.cores <= mostCores) || math.IsInf(f.cores, 0) {
		return failure.New("write it as in 500m or 2", "--cpu-limit: %s is not a useful number of cores", f.cpuLimit)
	}

	return nil
}

// adviseOn reads the metrics twice, and prints the advice.
func (a *app) adviseOn(ctx context.Context, f *adviser) error {
	targets, done, err := a.targets(ctx, f)
	if err != nil {
		return err
	}
	defer done()

	readings, err := a.observe(ctx, f, targets)
	if err != nil {
		return err
	}

	report, err := advise.Advise(readings, f.question)
	if err != nil {
		return unusable(err)
	}

	if f.output.forProgram() {
		var text []byte
		if text, err = json.Marshal(report); err == nil {
			err = f.output.emit(text)
		}
	} else {
		err = a.printAdvice(f.output, report)
	}

	if err == nil && report.Conclusion.Problem {
		return errProblem
	}

	return err
}

// targets returns the processes to read. done ends their connections.
func (a *app) targets(ctx context.Context, f *adviser) (targets []scrape.Target, done func(), err error) {
	if len(f.urls) > 0 {
		return scrape.URLs(f.urls, scrape.Trust{
			CAFile: a.connect.CAFile, ServerName: a.connect.ServerName, Insecure: a.connect.Insecure,
			TokenFile: f.tokenFile, UserAgent: a.connect.UserAgent,
		})
	}

	config, err := a.config()
	if err != nil {
		return nil, nil, err
	}

	if config == nil {
		return nil, nil, failure.New("set KUBECONFIG or --kubeconfig, or name URLs with --metrics", "there is no kubeconfig, so --pods cannot be found in a cluster")
	}

	if f.pods.Namespace, err = a.namespace(); err != nil {
		return nil, nil, err
	}

	config.UserAgent = a.connect.UserAgent

	ctx, cancel := context.WithTimeout(ctx, f.limit())
	defer cancel()

	targets, err = f.pods.Find(ctx, config)

	return targets, func() {}, err
}

// limit is the time for one request.
func (f *adviser) limit() time.Duration {
	if f.timeout > 0 {
		return f.timeout
	}

	return scrape.Timeout
}

// observe reads the pages of the processes at two times. A process that cannot be read again is left out, unless it is the only one.
func (a *app) observe(ctx context.Context, f *adviser, targets []scrape.Target) ([]advise.Reading, error) {
	reader := scrape.Reader{Timeout: f.timeout, Clock: a.Clock}

	before := reader.Read(ctx, targets)
	if err := first(before); err != nil {
		return nil, err
	}

	if err := anyController(before); err != nil {
		return nil, unusable(err)
	}

	if err := a.wait(ctx, f.interval, len(targets)); err != nil {
		return nil, err
	}

	after := reader.Read(ctx, targets)

	var readings []advise.Reading

	for i := range targets {
		if after[i].Err != nil {
			continue
		}

		r := advise.Reading{
			Name: targets[i].Name, Before: before[i].Page, After: after[i].Page, Elapsed: after[i].At.Sub(before[i].At), At: after[i].At,
			CPULimit: targets[i].CPULimit, MemoryLimit: targets[i].MemoryLimit,
		}
		if f.cores > 0 {
			r.CPULimit = f.cores
		}

		readings = append(readings, r)
	}

	err := first(after)
	if len(readings) == 0 {
		return nil, err
	}

	if err != nil {
		fmt.Fprintf(a.Err, "warning: left out, because it cannot be read again: %s\n", failure.Clean(err.Error()))
	}

	return readings, nil
}

// first returns the first error. Nil: there is none.
func first(results []scrape.Result) error {
	for _, r := range results {
		if r.Err != nil {
			return r.Err
		}
	}

	return nil
}

// anyController returns the error about the first page if no page has controllers.
func anyController(results []scrape.Result) error {
	var failed error

	for _, r := range results {
		err := advise.Check(r.Page)
		if err == nil {
			return nil
		}

		if failed == nil {
			failed = err
		}
	}

	return failed
}

// unusable adds advice to an error about pages.
func unusable(err error) error {
	switch {
	case errors.Is(err, advise.ErrNoControllers):
		return failure.New("name the metrics page of a running controller: that of the replica that leads, and of a program that uses controller-runtime", "%w", err)
	case errors.Is(err, advise.ErrRestarted):
		return failure.New("see why: kubectl describe pod, kubectl logs --previous; then ask again", "%w", err)
	default:
		return err
	}
}

// wait waits, and shows how long.
func (a *app) wait(ctx context.Context, interval time.Duration, processes int) error {
	const step = time.Second

	which := "The metrics of 1 process were read"
	if processes > 1 {
		which = fmt.Sprintf("The metrics of %d processes were read", processes)
	}

	fmt.Fprintf(a.Err, "%s. They are read again in %s.\n", which, interval)

	for left := interval; left > 0; left -= step {
		if a.colour {
			fmt.Fprintf(a.Err, "\r%s left \x1b[K", left)
		}

		timer := a.Clock.NewTimer(min(step, left))
		select {
		case <-ctx.Done():
			timer.Stop()
			return failure.New("", "interrupted while the controller was observed: %w", context.Cause(ctx))
		case <-timer.C():
		}
	}

	if a.colour {
		fmt.Fprint(a.Err, "\r\x1b[K")
	}

	return nil
}
