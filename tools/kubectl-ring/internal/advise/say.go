package advise

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// number formats a number with two significant digits, or all digits before the point.
func number(x float64) string {
	switch {
	case math.Abs(x) >= 10 || x == math.Trunc(x):
		return strconv.FormatFloat(x, 'f', 0, 64)
	case math.Abs(x) >= 1:
		return strconv.FormatFloat(x, 'f', 1, 64)
	default:
		return strconv.FormatFloat(x, 'f', 2, 64)
	}
}

func percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }

// Seconds formats a duration in seconds for people, with two or three significant digits.
func seconds(s float64) string {
	if math.IsInf(s, 1) || s > float64(math.MaxInt64)/float64(time.Second) {
		return "forever"
	}

	d := time.Duration(s * float64(time.Second))

	unit := time.Nanosecond
	for unit < d/100 {
		unit *= 10
	}

	return d.Round(unit).String()
}

func count(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}

	if strings.HasSuffix(one, "s") {
		return fmt.Sprintf("%d %ses", n, one)
	}

	return fmt.Sprintf("%d %ss", n, one)
}

// problem describes the problem: what misses the target.
func (v *view) problem() string {
	c, target := v.controller, seconds(v.question.TargetP99.Seconds())

	switch {
	case v.load.piling:
		return fmt.Sprintf("work arrives faster than it is done (%s objects are in the queue)", number(v.load.depth))
	case v.now:
		return fmt.Sprintf("99 %% of the events take up to %s until their reconcile ends (target %s)", seconds(c.P99Seconds), target)
	case v.cpuIsTooMuch():
		return fmt.Sprintf("%s times the load would need %s cores, with room to breathe", number(v.question.Growth), number(v.all.cpu*v.all.catchUp*v.question.Growth/cpuPlan))
	default:
		return fmt.Sprintf("%s times the load would miss the target of %s", number(v.question.Growth), target)
	}
}

func (v *view) busyText() string {
	verb := "are"
	if v.load.workers == 1 {
		verb = "is"
	}

	return fmt.Sprintf("%s of %s %s busy", number(v.load.busy), count(v.load.workers, "worker"), verb)
}

func (v *view) sayFine() string {
	c := v.controller
	text := "no need to shard: "

	if c.Processes > 1 {
		text = "no need for more shards: "
	}

	text += fmt.Sprintf("99 %% of the events take up to %s until their reconcile ends (target %s)", seconds(c.P99Seconds), seconds(v.question.TargetP99.Seconds()))

	if room := v.room(); room >= 1 {
		text += fmt.Sprintf("; the load may grow %s-fold", atMost(room))
	}

	return text
}

// atMost formats how much a load may grow.
func atMost(room float64) string {
	const most = 100
	if room >= most {
		return "more than " + strconv.Itoa(most)
	}

	return number(math.Floor(10*room) / 10)
}

// room returns by how much the load may grow, for the queue and the CPU.
func (v *view) room() float64 {
	if v.controller.Plan == nil {
		return 0
	}

	room := v.controller.Plan.Room
	if v.all.limit > 0 && v.all.cpu > 0 {
		room = min(room, cpuPlan*v.all.limit*float64(v.all.processes)/v.all.cpu)
	}

	return room
}

func (v *view) sayThrottled() (text, do string) {
	return fmt.Sprintf("the API server is the bottleneck, not the controller: it refused %s of the requests (429, priority and fairness), %s",
			percent(v.all.throttled/v.all.requests), v.problem()),
		"give the controller a priority level with more concurrency (a FlowSchema and a PriorityLevelConfiguration), or send fewer requests; shards " +
			"send the same requests to the same API server"
}

func (v *view) sayLimited() (text, do string) {
	do = "raise QPS and Burst of the rest.Config, or set QPS to -1 (controller-runtime's default since 0.21): the API server protects itself by " +
		"priority and fairness. Each shard has a limit of its own, so shards would help, too, but this costs nothing"

	if !v.all.limiterKnown {
		return fmt.Sprintf("the client's rate limit is likely the bottleneck: a process sends %s requests per second, and QPS %s is a usual limit; %s",
			number(v.all.requests/float64(v.all.processes)), number(v.commonLimit()), v.problem()), do
	}

	return fmt.Sprintf("the client's rate limit is the bottleneck: %s of the workers' time is spent waiting for it, at %s requests per second; %s",
		percent(min(v.all.limiter/v.all.busy, 1)), number(v.all.requests), v.problem()), do
}

func (v *view) sayFailing() (text, do string) {
	return fmt.Sprintf("errors are the problem: %s of the reconciles fail, and are tried again; %s", percent(v.controller.ErrorShare), v.problem()),
		"repair what fails (see the log); shards would try the same in vain"
}

func (v *view) sayStarved() (text, do string) {
	text = fmt.Sprintf("the controller is the bottleneck: CPU; the fullest process uses %s of its CPU limit", percent(v.all.fullest))

	if v.all.limit == 0 {
		text = "the controller is the bottleneck: CPU"
	}

	if v.all.scheduling >= starving {
		text += fmt.Sprintf(", and goroutines wait up to %s for a core", seconds(v.all.scheduling))
	}

	do = "shard it"

	if n := v.all.cpuShards(v.question.Growth); n > v.all.processes {
		workers := v.load.each
		if v.controller.Plan != nil {
			workers = max(workers, v.controller.Plan.CPUWorkers)
		}

		do += fmt.Sprintf(": %s with %s each (MaxConcurrentReconciles)", count(n, "shard"), count(workers, "worker"))
	}

	return text + "; " + v.problem(), do + ". Or give the process more CPU, or find what uses it (pprof)"
}

func (v *view) sayHot() (text, do string) {
	return fmt.Sprintf("likely one object is the bottleneck: %s, and still objects wait for %s; %s", v.busyText(), seconds(v.load.wait.mean()), v.problem()),
		"find the object that changes all the time (in the log) and what changes it, and make its reconcile shorter. One worker at a time " +
			"reconciles an object, on any number of shards"
}

func (v *view) sayWorkers() (text, do string) {
	text = fmt.Sprintf("the controller is the bottleneck: workers; %s; %s", v.busyText(), v.problem())
	if where := v.where(); where != "" {
		text += "; " + where
	}

	return text, v.moreWorkers()
}

// moreWorkers returns the advice to raise the number of workers.
func (v *view) moreWorkers() string {
	plan := v.controller.Plan

	if plan == nil || plan.WorkersPerProcess == 0 {
		do := "raise MaxConcurrentReconciles: more workers need no shards"
		if v.slow() {
			do += fmt.Sprintf(". A reconcile alone takes up to %s, so no number of workers or shards meets the target", seconds(v.controller.ReconcileP99Seconds))
		}

		return do
	}

	do := fmt.Sprintf("set MaxConcurrentReconciles to %d: more workers need no shards", plan.WorkersPerProcess)
	if plan.WorkersPerProcess <= v.load.each {
		do = "raise MaxConcurrentReconciles: more workers need no shards"
	}

	if plan.Shards > v.load.processes {
		do += fmt.Sprintf(", and do the same as %s with %s each", count(plan.Shards, "shard"), count(v.load.each, "worker"))
	}

	return do + ". First make sure that the services that reconciles call stand more calls at a time"
}

func (v *view) saySlow() (text, do string) {
	text = fmt.Sprintf("reconciles are too slow for the target: 99 %% take up to %s, without any wait (target %s), while %s",
		seconds(v.controller.ReconcileP99Seconds), seconds(v.question.TargetP99.Seconds()), v.busyText())
	if where := v.where(); where != "" {
		text += "; " + where
	}

	return text, "make reconciles shorter, or set another target; neither workers nor shards make them shorter"
}

func (v *view) sayBursts() (text, do string) {
	return fmt.Sprintf("work comes in bursts: on average, %s, but objects wait for %s; %s", v.busyText(), seconds(v.load.wait.mean()), v.problem()),
		"find what changes many objects at a time (resyncs, a changed parent, a restart) and spread it. If that cannot be: " + v.moreWorkers()
}
