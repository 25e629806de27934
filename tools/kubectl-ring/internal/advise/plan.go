package advise

import (
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/queueing"
)

// planner answers how a load can meet a target.
type planner struct {
	// total is the queue of all processes taken together, with the workers of one process.
	total queueing.Queue
	// processes is how many there are now. target is in seconds.
	processes int
	target    float64
	// fullest is the share of the fullest of several processes, times their number.
	fullest float64
}

func newPlanner(l *load, question Question) planner {
	q := l.queue()
	q.Rate *= float64(l.processes)
	q.Burst *= float64(l.processes)

	return planner{total: q, processes: l.processes, target: question.TargetP99.Seconds(), fullest: fullest(l)}
}

// fullest returns the share of the fullest of several processes, times their number: at least that of a hash ring, or else what was measured of
// enough work.
func fullest(l *load) float64 {
	const enough = 200 // waits for each process

	if l.processes > 1 && l.wait.count >= enough*float64(l.processes) {
		return max(l.fullest, balance)
	}

	return balance
}

// with returns the queue of the fullest of n processes. A burst spreads over them, and it grows with the load.
func (p planner) with(n, workers int, growth float64) queueing.Queue {
	share := growth / float64(n)
	if n > 1 {
		share *= min(p.fullest, float64(n))
	}

	q := p.total
	q.Rate *= share
	q.Burst *= share
	q.Workers = workers

	return q
}

// fits returns the 99th percentile of a queue, and whether it meets the target.
func (p planner) fits(q queueing.Queue) (p99 float64, ok bool) {
	if q.Busy() > busyLimit {
		return 0, false
	}

	p99 = q.Quantile(highQuantile)

	return p99, p99 <= p.target
}

// plan returns what meets the target with the growth.
func (p planner) plan(growth float64) *Plan {
	plan := &Plan{Room: p.room()}

	if p.total.Work.Quantile(highQuantile) > p.target {
		return plan // no queue can be short enough
	}

	plan.Shards, plan.ShardsP99Seconds = p.search(func(n int) queueing.Queue { return p.with(n, p.total.Workers, growth) })
	plan.WorkersPerProcess, plan.WorkersP99Seconds = p.search(func(n int) queueing.Queue { return p.with(p.processes, n, growth) })

	return plan
}

// workersOf returns the least number of workers of each of n processes. 0: no number meets the target.
func (p planner) workersOf(n int, growth float64) int {
	if n == 0 || p.total.Work.Quantile(highQuantile) > p.target {
		return 0
	}

	workers, _ := p.search(func(workers int) queueing.Queue { return p.with(n, workers, growth) })

	return workers
}

// search returns the least n from 1 to mostShards whose queue fits, and its 99th percentile; 0 if there is none. More is never worse.
func (p planner) search(queue func(n int) queueing.Queue) (n int, p99 float64) {
	low, high := 0, 1 // low does not fit

	for {
		if _, ok := p.fits(queue(high)); ok {
			break
		}

		if high == mostShards {
			return 0, 0
		}

		low, high = high, min(2*high, mostShards)
	}

	for high-low > 1 {
		if middle := (low + high) / 2; p.ok(queue(middle)) {
			high = middle
		} else {
			low = middle
		}
	}

	p99, _ = p.fits(queue(high))

	return high, p99
}

func (p planner) ok(q queueing.Queue) bool {
	_, ok := p.fits(q)
	return ok
}

// room returns by how much the load may grow, from 0 to mostShards.
func (p planner) room() float64 {
	const rounds = 30

	low, high := 0.0, float64(mostShards)
	for range rounds {
		if middle := (low + high) / 2; p.ok(p.with(p.processes, p.total.Workers, middle)) {
			low = middle
		} else {
			high = middle
		}
	}

	return low
}
