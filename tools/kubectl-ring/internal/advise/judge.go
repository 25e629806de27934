package advise

import (
	"fmt"
	"math"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/queueing"
)

// judge returns the advice about a controller.
func judge(l *load, s *situation, question Question) Controller {
	work, _ := l.service()
	c := Controller{
		Name: l.name, Processes: l.processes, WorkersPerProcess: l.each,
		BusyWorkers: l.busy, Busy: l.share(),
		ArrivalsPerSecond: l.adds, ReconcilesPerSecond: l.done,
		QueueBefore: l.depthBefore, QueueAfter: l.depth,
		WaitMeanSeconds: l.wait.mean(), WaitExact: l.wait.fine,
		ReconcileMeanSeconds: work.Mean(), ReconcileP99Seconds: work.Quantile(highQuantile), ReconcileVariation: work.Variation(),
		P99Seconds: queueing.QuantileOfSum(l.wait.distribution(), work, highQuantile),
		Findings:   []Finding{},
	}

	if l.done > 0 {
		c.ErrorShare = l.failed / l.done
	}

	v := &view{load: l, all: s, question: question, controller: &c}
	v.now = l.piling || c.P99Seconds > question.TargetP99.Seconds() && l.done > 0

	if l.done > 0 && !v.hot() {
		v.planner = newPlanner(l, question)
		c.BurstSize = v.planner.total.Burst
		c.Plan = v.planner.plan(question.Growth)
		c.Plan.CPUShards = s.cpuShards(question.Growth)
		c.Plan.CPUWorkers = v.planner.workersOf(c.Plan.CPUShards, question.Growth)
	}

	v.grown = !v.now && v.tooMuch()
	v.decide()
	v.find()

	return c
}

// view is one controller in its situation.
type view struct {
	load       *load
	all        *situation
	question   Question
	controller *Controller
	planner    planner
	// now reports whether the target is missed now, grown whether it is met now, but not with the growth.
	now, grown bool
}

// rule is a cause and what it takes.
type rule struct {
	verdict Verdict
	applies func(*view) bool
	say     func(*view) (text, do string)
}

// rules are the causes of a problem, in their order. The last one always applies.
var rules = []rule{
	{APIServer, (*view).throttled, (*view).sayThrottled},
	{ClientRateLimit, (*view).limited, (*view).sayLimited},
	{Errors, (*view).failing, (*view).sayFailing},
	{CPU, (*view).starved, (*view).sayStarved},
	{HotObject, (*view).hot, (*view).sayHot},
	{Workers, (*view).allBusy, (*view).sayWorkers},
	{SlowReconciles, (*view).slow, (*view).saySlow},
	{Bursts, func(*view) bool { return true }, (*view).sayBursts},
}

// decide sets the verdict.
func (v *view) decide() {
	c := v.controller

	switch {
	case v.load.done == 0 && v.load.share() > 0.5:
		c.Verdict, c.Text = Stuck, fmt.Sprintf("%s of %d workers are busy, but no reconcile ended in the interval; the oldest one runs for %s",
			number(v.load.busy), v.load.workers, seconds(v.load.longest))
		c.Do = "observe for longer (--for), and see in the log, or in a stack dump, what the reconciles wait for; shards do not make them shorter"
	case v.load.done == 0:
		c.Verdict, c.Text = Idle, "no need to shard: no reconcile ended in the interval"
	case !v.now && !v.grown:
		c.Verdict, c.Text = Fine, v.sayFine()
	default:
		for _, r := range rules {
			if r.applies(v) {
				c.Verdict = r.verdict
				c.Text, c.Do = r.say(v)

				return
			}
		}
	}
}

// tooMuch reports whether the growth is too much for the processes, or for their workers.
func (v *view) tooMuch() bool {
	if v.question.Growth <= 1 || v.load.done == 0 {
		return false
	}

	return v.cpuIsTooMuch() || v.controller.Plan != nil && !v.planner.ok(v.planner.with(v.load.processes, v.planner.total.Workers, v.question.Growth))
}

// cpuIsTooMuch reports whether the processes have too little CPU for the growth.
func (v *view) cpuIsTooMuch() bool { return v.all.cpuShards(v.question.Growth) > v.all.processes }

func (v *view) throttled() bool {
	const several = 0.1 // per second

	return v.all.throttled >= several && v.all.throttled >= throttledShare*v.all.requests
}

// limited reports whether the client waits for its own limit. Without the metric, a steady rate of requests just at a common limit is a
// sign, if workers wait.
func (v *view) limited() bool {
	if v.all.limiterKnown {
		return v.all.limiter >= limiterShare*v.all.busy && v.all.limiter > 0
	}

	return v.commonLimit() > 0
}

// commonLimit returns the common limit of requests per second that the rate is at. 0: none.
func (v *view) commonLimit() float64 {
	const below, above = 0.96, 1.15 // leader election and watches have their own limits

	rate := v.all.requests / float64(v.all.processes)
	if v.load.share() < 0.5 || v.all.cpu > busyLimit*v.all.busy {
		return 0
	}

	for _, limit := range []float64{5, 20} { // the defaults of client-go, and of controller-runtime until it had none
		if rate >= below*limit && rate <= above*limit {
			return limit
		}
	}

	return 0
}

func (v *view) failing() bool { return v.controller.ErrorShare >= errorShare }

// starved reports whether the CPU is the limit: now, or with what the growth or the queue needs.
func (v *view) starved() bool {
	return v.all.fullest >= busyLimit || v.all.throttledCPU() || v.cpuIsTooMuch()
}

// hot reports whether the wait is that of one object that changes all the time: about one of several workers is busy, at most one object is in
// the queue, and still objects wait about as long as a reconcile takes.
func (v *view) hot() bool {
	const least, most = 0.7, 1.3 // busy workers, and objects in the queue

	l := v.load
	waiting := l.adds * l.wait.mean() // Little's law

	return l.workers/l.processes >= 2 && l.busy >= least && l.busy <= most && l.depth <= 2 && l.depthBefore <= 2 &&
		waiting >= 0.5 && waiting <= most && l.wait.mean() >= 0.5*l.work.mean()
}

func (v *view) allBusy() bool {
	return v.load.piling || v.load.share() >= cpuPlan || v.grown && v.controller.Plan.WorkersPerProcess > v.load.each
}

func (v *view) slow() bool { return v.controller.ReconcileP99Seconds > v.question.TargetP99.Seconds() }

// where describes where the time of the workers goes.
func (v *view) where() string {
	if v.all.busy == 0 {
		return ""
	}

	share := func(workers float64) string { return percent(min(workers/v.all.busy, 1)) }
	text := "of the workers' time, at most " + share(v.all.cpu) + " is CPU"
	rest := 1 - v.all.cpu/v.all.busy

	if v.all.limiterKnown {
		text += ", " + share(v.all.limiter) + " waits for the client's rate limit"
		rest -= v.all.limiter / v.all.busy
	}

	if v.all.apiKnown {
		text += ", " + share(v.all.api) + " waits for the API server"
		rest -= v.all.api / v.all.busy
	}

	if rest >= 0.5 {
		text += ", and at least " + percent(math.Min(rest, 1)) + " is other waiting"
		if !v.all.limiterKnown || !v.all.apiKnown {
			text += " (for the API server, the client's rate limit, or others)"
		} else {
			text += ", such as calls of other services"
		}
	}

	return text
}
