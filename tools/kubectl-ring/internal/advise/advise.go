// Package advise decides, from metrics that every controller of controller-runtime serves, whether it is time to shard
// it.
//
// [Advise] reads the pages of one or several processes at two times, and returns a verdict about each controller. It
// uses no client and no clock.
//
// A controller has a problem if objects wait for too long in its queue, or if its workers are busy nearly all the time.
// The causes are tried in the order of docs/when-to-shard.md: what shards do not remove comes first, then the CPU, then
// the number of workers.
//
// # What was refused
//
// A model of the queue that predicts how long objects would wait with more shards. It was off by up to a factor of two
// for bursts, and the number of shards follows from the CPU alone.
package advise

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
)

// Verdict is what limits a controller.
type Verdict string

// Verdicts.
const (
	// Fine: nothing does.
	Fine Verdict = "Fine"
	// Workers: more workers help, and are cheaper than shards.
	Workers Verdict = "Workers"
	// Shard: the one process has too little CPU.
	Shard Verdict = "Shard"
	// ShardMore: one of several processes has too little CPU.
	ShardMore Verdict = "ShardMore"
	// Limited: requests to the API server wait, for the client's own limit or for the API server's.
	Limited Verdict = "Limited"
)

// Reading is what one process has served, twice.
type Reading struct {
	// Name is that of the process, for people.
	Name string
	// Before and After are the pages.
	Before, After Page
	// Elapsed is the time between them. It is above 0.
	Elapsed time.Duration
	// CPULimit is how many cores the process may use. 0: it is not known, and GOMAXPROCS of the process counts.
	CPULimit float64
}

// Report is the advice.
type Report struct {
	// TargetP99Seconds is how long 99 % of the objects may wait in a queue.
	TargetP99Seconds float64      `json:"targetP99Seconds"`
	Controllers      []Controller `json:"controllers"`
}

// Controller is what was measured of a controller over all processes that run it, and the advice.
type Controller struct {
	Name string `json:"name"`
	// Processes is the number of processes that run it.
	Processes int `json:"processes"`
	// WorkersPerProcess is MaxConcurrentReconciles, the most of all processes.
	WorkersPerProcess int `json:"workersPerProcess"`
	// BusyWorkers is how many workers of all processes were busy, on average. Busy is the share of them in the process
	// with the highest.
	BusyWorkers float64 `json:"busyWorkers"`
	Busy        float64 `json:"busy"`
	// ArrivalsPerSecond is what came into the queue, ReconcilesPerSecond what was done.
	ArrivalsPerSecond    float64 `json:"arrivalsPerSecond"`
	ReconcilesPerSecond  float64 `json:"reconcilesPerSecond"`
	ReconcileMeanSeconds float64 `json:"reconcileMeanSeconds"`
	// QueueLength is how many objects waited at the end, QueueP50Seconds and QueueP99Seconds how long 50 and 99 % of the
	// objects waited at most.
	QueueLength     float64 `json:"queueLength"`
	QueueP50Seconds float64 `json:"queueP50Seconds"`
	QueueP99Seconds float64 `json:"queueP99Seconds"`
	// CPUCores is how many cores the processes used, for all of their controllers. CPU is the share of its limit in the
	// process with the highest. CPULimitCores is the lowest limit of a process. 0: not known.
	CPUCores      float64 `json:"cpuCores"`
	CPU           float64 `json:"cpu"`
	CPULimitCores float64 `json:"cpuLimitCores"`
	// RequestsPerSecond counts the requests of the processes to API servers, RefusedPerSecond those that were answered
	// with 429.
	RequestsPerSecond float64 `json:"requestsPerSecond"`
	RefusedPerSecond  float64 `json:"refusedPerSecond"`
	// LimiterWorkers is how many workers waited for the client's own limit, on average. Absent: it is not measured.
	LimiterWorkers *float64 `json:"limiterWorkers,omitempty"`
	Verdict        Verdict  `json:"verdict"`
	// Reason is why, and Do what to do, for people. Do is empty if there is nothing to do.
	Reason string `json:"reason"`
	Do     string `json:"do,omitempty"`
	// Shards is how many shards are needed. 0: the verdict is another one than Shard and ShardMore.
	Shards int `json:"shards,omitempty"`

	// usual is how many requests per second a process sent that was at a usual limit. 0: none was.
	usual float64
}

// Check returns an error if no process ran a controller at each reading that there is.
func Check(readings []Reading) error {
	if slices.ContainsFunc(readings, func(r Reading) bool {
		return len(r.Before.controllers()) > 0 && (r.After == nil || len(r.After.controllers()) > 0)
	}) {
		return nil
	}

	return failure.New("name the metrics page of the replica that leads, and of a program that uses controller-runtime",
		"no controller of controller-runtime runs")
}

// Advise returns the advice. target is how long 99 % of the objects may wait in a queue. It returns an error about a
// process that has restarted, and that of [Check].
func Advise(readings []Reading, target time.Duration) (*Report, error) {
	report := &Report{TargetP99Seconds: target.Seconds()}

	var names []string

	for _, r := range readings {
		if r.After.sum(startMetric) > r.Before.sum(startMetric)+1 { // the kernel counts in ticks
			return nil, failure.New("see why, and ask again", "%s restarted while it was observed", r.Name)
		}

		names = append(names, r.After.controllers()...)
	}

	slices.Sort(names)

	all, most := 0.0, 0.0

	for _, name := range slices.Compact(names) {
		c := measure(name, readings)
		all += c.BusyWorkers
		most = max(most, c.BusyWorkers)
		report.Controllers = append(report.Controllers, c)
	}

	for i := range report.Controllers {
		c := &report.Controllers[i]
		c.Verdict, c.Reason, c.Do = c.judge(target.Seconds(), all, c.BusyWorkers == most)
	}

	return report, Check(readings)
}

// rate returns how much a metric has grown, per second.
func (r *Reading) rate(metric string, labelled ...string) float64 {
	return (r.After.sum(metric, labelled...) - r.Before.sum(metric, labelled...)) / r.Elapsed.Seconds()
}

// measure adds up the figures of a controller in the processes that run it.
func measure(name string, readings []Reading) Controller {
	of := []string{"controller", name}
	work, wait := values{buckets: map[float64]float64{}}, values{buckets: map[float64]float64{}}
	c := Controller{Name: name, LimiterWorkers: new(0.0)}

	for _, r := range readings {
		workers := r.After.sum(workersMetric, of...)
		if workers == 0 {
			continue // it waits for its election
		}

		// Reconciles that have not ended count up to each reading.
		earlier := work.sum
		work.add(r.Before, r.After, timeMetric, of...)
		wait.add(r.Before, r.After, waitMetric, of...)
		busy := min(max((work.sum-earlier)/r.Elapsed.Seconds()+r.rate(unfinishedMetric, of...), 0), workers)

		c.Processes++
		c.WorkersPerProcess = max(c.WorkersPerProcess, int(workers))
		c.BusyWorkers += busy
		c.Busy = max(c.Busy, busy/workers)
		c.ArrivalsPerSecond += r.rate(addsMetric, of...)
		c.ReconcilesPerSecond += r.rate(reconcilesMetric, of...)
		c.QueueLength += r.After.sum(depthMetric, of...)
		requests := r.rate(requestsMetric)
		c.RequestsPerSecond += requests
		c.RefusedPerSecond += r.rate(requestsMetric, "code", "429")
		c.CPUCores += r.rate(cpuMetric)

		if slices.ContainsFunc(usualLimits, func(l float64) bool { return requests >= 0.96*l && requests <= 1.15*l }) {
			c.usual = requests // elections and watches have limits of their own
		}

		if limit := cmp.Or(r.CPULimit, r.After.sum(maxProcsMetric)); limit > 0 {
			c.CPU = max(c.CPU, r.rate(cpuMetric)/limit)
			c.CPULimitCores = min(cmp.Or(c.CPULimitCores, limit), limit)
		}

		if r.After[limiterMetric] == nil {
			c.LimiterWorkers = nil
		} else if c.LimiterWorkers != nil {
			*c.LimiterWorkers += r.rate(limiterMetric)
		}
	}

	c.ReconcileMeanSeconds, c.QueueP50Seconds, c.QueueP99Seconds = work.sum/max(work.count, 1), wait.quantile(0.5),
		wait.quantile(0.99)

	return c
}

// Limits of the rules. docs/when-to-shard.md explains them.
const (
	// Full is the share of busy workers, and of a CPU limit, from which on waits are long and unsteady.
	Full = 0.8
	// Aim is the share that advice aims at: bursts and garbage collection need the rest.
	Aim = 0.6
	// limitedShare is the share of the workers' time that counts as "waits for the client's limit".
	limitedShare = 0.2
	// refusedShare is the share of refused requests that counts, if there are refusedRate of them in a second.
	refusedShare, refusedRate = 0.01, 0.1
)

// usualLimits are the requests per second that client-go allows by default, and that controller-runtime did.
var usualLimits = []float64{5, 20}

// judge returns the verdict about a controller. target is how long 99 % of the objects may wait, in seconds. all is how
// many workers of all controllers in the processes were busy, and most reports whether this controller had the most of
// them.
func (c *Controller) judge(target, all float64, most bool) (verdict Verdict, reason, do string) {
	late := c.QueueP99Seconds > target
	problem := late || c.Busy >= Full
	reason = fmt.Sprintf("workers are %.0f %% busy, and the CPU %.0f %%; 99 %% of the objects wait %s at most (target %s)",
		100*c.Busy, 100*c.CPU, Seconds(c.QueueP99Seconds), Seconds(target))

	if c.CPULimitCores == 0 {
		reason += "; the CPU limit is not known: name it with --cpu-limit"
	}

	backlog := 1.0
	if c.ReconcilesPerSecond > 0 {
		backlog = max(c.ArrivalsPerSecond/c.ReconcilesPerSecond, 1)
	} else {
		reason = "no reconcile ended; " + reason
	}

	if backlog > 1.05 && c.Busy >= Full {
		reason += fmt.Sprintf("; work arrives faster than it is done (%.0f objects are in the queue)", c.QueueLength)
	}

	switch why, do := c.limited(all); {
	case problem && do != "":
		return Limited, reason + "; " + why, do
	case c.CPU >= Full && (problem || most):
		c.Shards = max(int(math.Ceil(c.CPUCores*backlog/(Aim*c.CPULimitCores))), c.Processes+1)
		verdict = Shard

		if c.Processes > 1 {
			verdict = ShardMore
		}

		return verdict, reason, fmt.Sprintf("run %d shards at least, each with as much CPU and as many workers as now. Or "+
			"give the process more CPU, or find what uses it (pprof)", c.Shards)
	case c.Busy >= Full:
		needed := math.Ceil(c.Busy * float64(c.WorkersPerProcess) * backlog / Aim)

		return Workers, reason, fmt.Sprintf("raise MaxConcurrentReconciles from %d to %.0f: that needs no shards. First "+
			"make sure that the services that reconciles call "+
			"stand more calls at a time", c.WorkersPerProcess, max(needed, float64(c.WorkersPerProcess)+1))
	case late:
		return Workers, reason + "; work comes in bursts, or one object changes all the time",
			"find out (in the log) which: an object that changes all the time is " +
				"reconciled by one worker at a time, on any number of shards; for bursts, raise MaxConcurrentReconciles"
	default:
		return Fine, reason, ""
	}
}

// limited returns why requests to the API server wait, and what to do. Both are empty if they do not.
func (c *Controller) limited(all float64) (why, do string) {
	const qps = "raise QPS and Burst of the rest.Config, or set QPS to -1: the API server protects itself by priority " +
		"and fairness. Each shard has a limit of " +
		"its own, so shards would help, too, but this costs nothing"

	switch {
	case c.RefusedPerSecond >= max(refusedRate, refusedShare*c.RequestsPerSecond):
		return fmt.Sprintf("the API server refuses %.1f of %.1f requests per second (429, priority and fairness)",
				c.RefusedPerSecond, c.RequestsPerSecond),
			"give the controller a priority level with more concurrency (a FlowSchema and a PriorityLevelConfiguration), or " +
				"send fewer requests; shards send the same"
	case c.LimiterWorkers != nil && *c.LimiterWorkers >= max(limitedShare*all, math.SmallestNonzeroFloat64):
		return fmt.Sprintf("%.0f %% of the workers' time is spent waiting for the client's own limit of requests",
			100*min(*c.LimiterWorkers/all, 1)), qps
	case c.LimiterWorkers == nil && c.CPU < Full && c.usual > 0:
		return fmt.Sprintf("likely, requests wait for the client's own limit: a process sends %.1f in a second, and 5 and "+
			"20 are usual limits", c.usual), qps
	default:
		return "", ""
	}
}

// Seconds formats a time for people, with two or three digits.
func Seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))

	unit := time.Microsecond
	for unit < d/100 {
		unit *= 10
	}

	return d.Round(unit).String()
}
