package advise

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/queueing"
)

// Reading is what one process has served, twice.
type Reading struct {
	// Name is that of the process, for people.
	Name string
	// Before and After are the pages.
	Before, After Page
	// Elapsed is the time between them. It is above 0.
	Elapsed time.Duration
	// At is when After was read.
	At time.Time
	// CPULimit is how many cores the process may use. 0: it is not known, and GOMAXPROCS of the process counts.
	CPULimit float64
	// MemoryLimit is how much memory the process may use, in bytes. 0: it is not known.
	MemoryLimit float64
}

// ErrRestarted is the error about a process that has restarted between two readings.
var ErrRestarted = errors.New("it restarted while it was observed")

// ErrNoControllers is the error about pages without a running controller of controller-runtime.
var ErrNoControllers = errors.New("there is no running controller of controller-runtime")

// Check returns an error if a page shows no running controller: [ErrNoControllers], with what was found.
func Check(page Page) error {
	if len(page.controllers()) > 0 {
		return nil
	}

	return fmt.Errorf("%w: %s", ErrNoControllers, contents(page))
}

// contents describes a page without running controllers.
func contents(page Page) string {
	const most = 5

	leads, known := page.sum(leaderMetric, all)

	switch {
	case len(page) == 0:
		return "the page has no metrics"
	case known && leads == 0:
		return "the process waits for its election as leader (" + leaderMetric + " is 0)"
	case page[workersMetric] != nil || page[reconcilesMetric] != nil:
		return "the library is there, but no controller has started"
	case page[addsMetric] != nil:
		return "there are work queues (" + strings.Join(slices.Sorted(maps.Keys(page.sumBy(addsMetric, "name", all))), ", ") + "), but no " + workersMetric
	case page[goMetric] != nil:
		return "it is a Go program with other metrics"
	}

	names := slices.Sorted(maps.Keys(page))
	if len(names) > most {
		names = append(names[:most], "...")
	}

	return fmt.Sprintf("%d metrics were found: %s", len(page), strings.Join(names, ", "))
}

// load is the work of a controller in all processes.
type load struct {
	name string
	// processes is how many processes run the controller, workers how many workers all of them have, and each the most of one of them.
	processes, workers, each int
	// adds, done, failed, polled are per second: what came into the queue, the reconciles that ended, those with an error, and those that
	// asked for another one later.
	adds, done, failed, polled float64
	// busy is the number of workers that were busy, on average.
	busy float64
	// depthBefore and depth are the lengths of the queues at the readings, active the busy workers at the second one.
	depthBefore, depth, active float64
	// longest is the age of the oldest reconcile that has not ended, in seconds.
	longest float64
	// wait and work are the times in the queue, and of reconciles.
	wait, work values
	// lifetime has the times of all reconciles since the processes started.
	lifetime values
	// piling reports whether, in a process, work arrives faster than it is done.
	piling bool
	// busiest is the highest share of busy workers in a process.
	busiest float64
	// fullest is the share of the load in the process with the most, times the number of processes: 1 if all have the same.
	fullest float64
}

// loadOf returns the work of a controller.
func loadOf(name string, readings []Reading) load {
	l := load{name: name, fullest: 1}
	most := 0.0

	for _, r := range readings {
		workers := int(r.After.value(workersMetric, of(name)))
		if workers == 0 {
			continue
		}

		l.processes++
		l.workers += workers
		l.each = max(l.each, workers)
		l.add(r, workers)

		adds := r.rate(addsMetric, of(name))
		l.adds += adds
		most = max(most, adds)
	}

	if l.adds > 0 {
		l.fullest = most * float64(l.processes) / l.adds
	}

	return l
}

// add adds the figures of a process.
func (l *load) add(r Reading, workers int) {
	seconds, selected := r.Elapsed.Seconds(), of(l.name)
	before := r.Before.sumBy(reconcilesMetric, "result", selected)

	for result, count := range r.After.sumBy(reconcilesMetric, "result", selected) {
		rate := grown(before[result], count) / seconds
		l.done += rate

		switch result {
		case "error":
			l.failed += rate
		case "requeue_after", "requeue":
			l.polled += rate
		}
	}

	depthBefore, depth := r.Before.value(depthMetric, selected), r.After.value(depthMetric, selected)
	l.depthBefore += depthBefore
	l.depth += depth
	l.active += r.After.value(activeMetric, selected)
	l.longest = max(l.longest, r.After.value(longestMetric, selected))
	l.wait = l.wait.plus(observedSince(r.Before, r.After, waitMetric, selected))
	work := observedSince(r.Before, r.After, timeMetric, selected)
	l.work = l.work.plus(work)
	l.lifetime = l.lifetime.plus(observedSince(nil, r.After, timeMetric, selected))

	// Reconciles that began before count only from the first reading on, and those that have not ended count up to the second one.
	unfinished := r.After.value(unfinishedMetric, selected) - r.Before.value(unfinishedMetric, selected)
	busy := min(max((work.sum+unfinished)/seconds, 0), float64(workers))
	l.busy += busy

	const (
		faster = 1.05
		more   = 5 // objects
	)

	share := busy / float64(workers)
	grows := r.rate(addsMetric, selected) > faster*r.rate(reconcilesMetric, selected) && depth > depthBefore+more && share > busyLimit
	l.busiest = max(l.busiest, share)
	l.piling = l.piling || grows || share >= saturated && depth > float64(workers)
}

// few is the number of reconciles below which those since the start of the processes count, too.
const few = 30

// service returns the distribution of the times of reconciles, and whether it is that of the interval alone.
func (l *load) service() (d queueing.Distribution, fresh bool) {
	if l.work.count < few && l.lifetime.count > l.work.count {
		return l.lifetime.distribution(), false
	}

	return l.work.distribution(), true
}

// rate returns how much a counter has grown, per second.
func (r Reading) rate(name string, selected match) float64 {
	total := 0.0
	before := map[string]float64{}

	r.Before.series(name, selected, func(m *dto.Metric, _ map[string]string) { before[key(m)] = m.GetCounter().GetValue() })
	r.After.series(name, selected, func(m *dto.Metric, _ map[string]string) { total += grown(before[key(m)], m.GetCounter().GetValue()) })

	return total / r.Elapsed.Seconds()
}

// process returns the figures of a process.
func (r Reading) process() Process {
	p := Process{
		Name:              r.Name,
		CPUCores:          r.rate(cpuMetric, all),
		CPULimitCores:     r.CPULimit,
		MemoryBytes:       r.After.value(memoryMetric, all),
		MemoryLimitBytes:  r.MemoryLimit,
		RequestsPerSecond: r.rate(requestsMetric, all),
		Controllers:       len(r.After.controllers()),
	}
	if p.CPULimitCores == 0 {
		p.CPULimitCores = r.After.value(maxProcsMetric, all)
	}

	if start := r.After.value(startMetric, all); start > 0 {
		p.UptimeSeconds = max(float64(r.At.UnixMilli())/1000-start, 0)
	}

	code := func(prefix string) match {
		return func(labels map[string]string) bool { return strings.HasPrefix(labels["code"], prefix) }
	}
	p.ThrottledPerSecond = r.rate(requestsMetric, code("429"))
	p.FailedPerSecond = r.rate(requestsMetric, code("5"))
	seconds := r.Elapsed.Seconds()

	if r.After[limiterMetric] != nil {
		p.LimiterKnown = true
		p.LimiterWorkers = observedSince(r.Before, r.After, limiterMetric, all).sum / seconds
	}

	if r.After[latencyMetric] != nil {
		p.RequestTimeKnown = true
		// The time of a request includes its wait for the limiter.
		p.RequestWorkers = max(observedSince(r.Before, r.After, latencyMetric, all).sum/seconds-p.LimiterWorkers, 0)
	}

	if sched := observedSince(r.Before, r.After, schedMetric, all); sched.count > 0 {
		p.SchedulingP99Seconds = sched.distribution().Quantile(highQuantile)
	}

	return p
}

// restarted reports whether the process is not the same at both readings.
func (r Reading) restarted() bool {
	const slack = 1 // the kernel counts in ticks

	before, after := r.Before.value(startMetric, all), r.After.value(startMetric, all)

	return after > before+slack || r.After.value(cpuMetric, all) < r.Before.value(cpuMetric, all)
}
