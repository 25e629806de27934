// Package advise decides, from metrics that every controller of controller-runtime serves, whether it is time to shard it.
//
// It reads the metrics of one or several processes at two times, as a [Reading] each, and returns a [Report]: what was measured, what limits
// each controller, how many shards or workers would meet a target, and what to do. [Check] tells beforehand whether a page is of use. The package
// is pure: it uses no client and no clock.
//
// # Steps
//
//  1. Counters and histograms are subtracted, process by process, and added up by controller. What is in progress counts up to the
//     moment of a reading: workers that run one long reconcile are busy.
//  2. The time from an event to the end of its reconcile is the wait in the queue plus the reconcile, as if both were independent.
//  3. A controller has a problem if the 99th percentile of this time misses the target, if work piles up, or if the model (package queueing)
//     says so for the load times the growth. The model is calibrated: if the measured wait is longer than that of random arrivals,
//     it has bursts.
//  4. The cause of a problem is the first that applies, in the order of [Advise]'s rules: causes that shards do not remove come first.
package advise

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/queueing"
)

// Question is what the advice is about.
type Question struct {
	// TargetP99 is how long 99 % of the events may take until the end of their reconcile. It is above 0.
	TargetP99 time.Duration
	// Growth multiplies the load. It is at least 1.
	Growth float64
}

// Limits of the rules. docs/when-to-shard.md explains them.
const (
	highQuantile = 0.99
	// busyLimit is the share of busy workers, and of a CPU limit, that a plan leaves no room above. Waits become long and unsteady there.
	busyLimit = 0.8
	// cpuPlan is the share of the CPU limit that a plan uses: garbage collection and bursts need the rest.
	cpuPlan = 0.7
	// saturated is the share of busy workers from which on the queue tells no more how much work there is.
	saturated = 0.95
	// steady is the share of busy workers up to which waits are those of a steady state, so that a model can be calibrated with them.
	steady = 0.9
	// limiterShare is the share of the time of busy workers that counts as "waits for the client's limit".
	limiterShare = 0.2
	// throttledShare is the share of requests with the answer 429 that counts.
	throttledShare = 0.01
	// errorShare is the share of failed reconciles that explains a problem.
	errorShare = 0.2
	// starving is how long a goroutine waits for a core in a process with too little CPU, in seconds.
	starving = 0.02
	// throttledCPU is the share of the CPU limit from which on such waits count.
	throttledCPU = 0.5
	// balance is the share of the fullest shard times the number of shards: a table of the hash ring bounds it.
	balance = 1.05
	// mostShards bounds the search of plans, for shards and for workers.
	mostShards = 1000
)

// Advise returns the advice. It returns an error about a process that has restarted ([ErrRestarted]), and if no process runs a controller
// ([ErrNoControllers]). readings are not empty.
func Advise(readings []Reading, question Question) (*Report, error) {
	report := &Report{
		TargetP99Seconds: question.TargetP99.Seconds(), Growth: question.Growth,
		Controllers: []Controller{}, Processes: []Process{}, Assumptions: []string{},
	}

	var names []string

	for _, r := range readings {
		if r.restarted() {
			return nil, fmt.Errorf("process %s: %w", r.Name, ErrRestarted)
		}

		report.IntervalSeconds = max(report.IntervalSeconds, r.Elapsed.Seconds())
		report.Processes = append(report.Processes, r.process())
		names = append(names, r.After.controllers()...)
	}

	slices.Sort(names)

	names = slices.Compact(names)
	if len(names) == 0 {
		return nil, Check(readings[0].After)
	}

	loads := make([]load, 0, len(names))
	for _, name := range names {
		loads = append(loads, loadOf(name, readings))
	}

	s := survey(report.Processes, loads)
	for i := range loads {
		report.Controllers = append(report.Controllers, judge(&loads[i], &s, question))
	}

	report.Conclusion = conclude(report.Controllers, &s, question)
	report.Assumptions = assumptions(report, loads, &s)

	return report, nil
}

// situation is what all controllers of the processes share.
type situation struct {
	// processes is the number of processes that run a controller.
	processes int
	// busy is the number of busy workers of all controllers.
	busy float64
	// cpu is the number of cores that all processes used, and limit that of one process. fullest is the highest share of its limit that
	// a process used. 0: not known.
	cpu, limit, fullest float64
	// scheduling is the longest wait for a core of a process.
	scheduling float64
	// requests, throttled and failed are per second.
	requests, throttled, failed float64
	// limiter and api are the numbers of workers that waited for them. known reports whether the metrics are there in all processes.
	limiter, api           float64
	limiterKnown, apiKnown bool
	// catchUp is how much faster than it was done work arrived. It is at least 1.
	catchUp float64
	// uptime is the age of the youngest process, in seconds. 0: not known.
	uptime float64
}

// survey adds up the processes that run a controller. Others wait for their election: their metrics say nothing.
func survey(processes []Process, loads []load) situation {
	s := situation{limiterKnown: true, apiKnown: true, catchUp: 1}

	for i := range processes {
		p := &processes[i]
		if p.Controllers == 0 {
			continue
		}

		s.processes++
		s.cpu += p.CPUCores
		s.scheduling = max(s.scheduling, p.SchedulingP99Seconds)
		s.requests += p.RequestsPerSecond
		s.throttled += p.ThrottledPerSecond
		s.failed += p.FailedPerSecond
		s.limiter += p.LimiterWorkers
		s.api += p.RequestWorkers
		s.limiterKnown = s.limiterKnown && p.LimiterKnown
		s.apiKnown = s.apiKnown && p.RequestTimeKnown

		if p.CPULimitCores > 0 {
			s.fullest = max(s.fullest, p.CPUCores/p.CPULimitCores)
			s.limit = least(s.limit, p.CPULimitCores)
		}

		if p.UptimeSeconds > 0 {
			s.uptime = least(s.uptime, p.UptimeSeconds)
		}
	}

	if s.throttledCPU() {
		s.limit = s.cpu / float64(s.processes) // it gets no more
	}

	arrived, done := 0.0, 0.0

	for i := range loads {
		s.busy += loads[i].busy
		arrived += loads[i].adds
		done += loads[i].done
	}

	if done > 0 {
		s.catchUp = max(arrived/done, 1)
	}

	return s
}

// throttledCPU reports whether the processes get less CPU than their known limit: goroutines wait for cores although there seem to be some.
func (s *situation) throttledCPU() bool {
	return s.scheduling >= starving && s.fullest >= throttledCPU && s.fullest < busyLimit
}

// least returns the smaller number, where 0 stands for none.
func least(a, b float64) float64 {
	if a == 0 {
		return b
	}

	return min(a, b)
}

// cpuShards returns how many processes have enough CPU for the growth. 0: the limit is not known.
func (s *situation) cpuShards(growth float64) int {
	if s.limit == 0 {
		return 0
	}

	needed := s.cpu * s.catchUp * growth / (cpuPlan * s.limit)
	if needed > 1 {
		needed *= s.uneven()
	}

	return max(int(math.Ceil(needed)), 1)
}

// uneven returns the share of the CPU in the process with the most, times the number of processes: at least that of a hash ring.
func (s *situation) uneven() float64 {
	if s.processes < 2 || s.cpu == 0 {
		return balance
	}

	return max(s.fullest*s.limit*float64(s.processes)/s.cpu, balance)
}

// queue returns the model of one of the processes, calibrated with the measured wait.
func (l *load) queue() queueing.Queue {
	work, _ := l.service()
	q := queueing.Queue{Rate: max(l.adds, l.done) / float64(l.processes), Workers: max(l.workers/l.processes, 1), Work: work}

	// Close to saturation, waits come from a shortage of workers that began before, rather than from bursts.
	if max(q.Busy(), l.busiest) < steady && !l.piling && work.Mean() > 0 {
		q = q.WithWait(l.wait.mean())
	}

	return q
}

// share returns the share of busy workers.
func (l *load) share() float64 { return l.busy / float64(l.workers) }
