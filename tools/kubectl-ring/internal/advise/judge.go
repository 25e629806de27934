package advise

import (
	"fmt"
	"math"
	"time"
)

// Limits of the rules. docs/when-to-shard.md explains them.
const (
	// full is the share of busy workers, and of a CPU limit, from which on waits are long and unsteady.
	full = 0.8
	// aim is the share that advice aims at: bursts and garbage collection need the rest.
	aim = 0.6
	// limitedShare is the share of the workers' time that counts as "waits for the client's limit".
	limitedShare = 0.2
	// refusedShare is the share of refused requests that counts, if there are refusedRate of them in a second.
	refusedShare, refusedRate = 0.01, 0.1
)

// usualLimits are the requests per second that client-go allows by default, and that controller-runtime did.
var usualLimits = []float64{5, 20}

// judge returns the verdict about a controller. target is how long 99 % of the objects may wait, in seconds. all is how many workers of all controllers in
// the processes were busy, and most reports whether this controller had the most of them.
func (c *Controller) judge(target, all float64, most bool) (verdict Verdict, reason, do string) {
	late := c.QueueP99Seconds > target
	problem := late || c.Busy >= full
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

	if backlog > 1.05 && c.Busy >= full {
		reason += fmt.Sprintf("; work arrives faster than it is done (%.0f objects are in the queue)", c.QueueLength)
	}

	switch why, do := c.limited(all); {
	case problem && do != "":
		return Limited, reason + "; " + why, do
	case c.CPU >= full && (problem || most):
		c.Shards = max(int(math.Ceil(c.CPUCores*backlog/(aim*c.CPULimitCores))), c.Processes+1)
		verdict = Shard

		if c.Processes > 1 {
			verdict = ShardMore
		}

		return verdict, reason, fmt.Sprintf("run %d shards at least, each with as much CPU and as many workers as now. Or give the process more CPU, or find what uses it (pprof)", c.Shards)
	case c.Busy >= full:
		needed := math.Ceil(c.Busy * float64(c.WorkersPerProcess) * backlog / aim)

		return Workers, reason, fmt.Sprintf("raise MaxConcurrentReconciles from %d to %.0f: that needs no shards. First make sure that the services that reconciles call "+
			"stand more calls at a time", c.WorkersPerProcess, max(needed, float64(c.WorkersPerProcess)+1))
	case late:
		return Workers, reason + "; work comes in bursts, or one object changes all the time", "find out (in the log) which: an object that changes all the time is " +
			"reconciled by one worker at a time, on any number of shards; for bursts, raise MaxConcurrentReconciles"
	default:
		return Fine, reason, ""
	}
}

// limited returns why requests to the API server wait, and what to do. Both are empty if they do not.
func (c *Controller) limited(all float64) (why, do string) {
	const qps = "raise QPS and Burst of the rest.Config, or set QPS to -1: the API server protects itself by priority and fairness. Each shard has a limit of " +
		"its own, so shards would help, too, but this costs nothing"

	switch {
	case c.RefusedPerSecond >= max(refusedRate, refusedShare*c.RequestsPerSecond):
		return fmt.Sprintf("the API server refuses %.1f of %.1f requests per second (429, priority and fairness)", c.RefusedPerSecond, c.RequestsPerSecond),
			"give the controller a priority level with more concurrency (a FlowSchema and a PriorityLevelConfiguration), or send fewer requests; shards send the same"
	case c.LimiterWorkers != nil && *c.LimiterWorkers >= max(limitedShare*all, math.SmallestNonzeroFloat64):
		return fmt.Sprintf("%.0f %% of the workers' time is spent waiting for the client's own limit of requests", 100*min(*c.LimiterWorkers/all, 1)), qps
	case c.LimiterWorkers == nil && c.CPU < full && c.usual > 0:
		return fmt.Sprintf("likely, requests wait for the client's own limit: a process sends %.1f in a second, and 5 and 20 are usual limits", c.usual), qps
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
