package advise

import (
	"fmt"
	"strings"
)

// find adds what is worth knowing besides the verdict.
func (v *view) find() {
	c, l := v.controller, v.load
	add := func(reason, text, do string) {
		c.Findings = append(c.Findings, Finding{Reason: reason, Text: text, Do: do})
	}

	const (
		noticed = 0.1  // the share of errors, of a limit's waits
		polls   = 0.5  // the share of reconciles that ask for another one
		uneven  = 1.25 // the share of the fullest process
		young   = 120  // seconds
	)

	if c.ErrorShare >= noticed && c.Verdict != Errors {
		add("Errors", percent(c.ErrorShare)+" of the reconciles fail, and are tried again", "see the log")
	}

	if v.limited() && c.Verdict != ClientRateLimit && c.Verdict.Problem() {
		text, do := v.sayLimited()
		add("ClientRateLimit", text, do)
	}

	if share := l.polled / max(l.done, 1e-9); l.done > 0 && share >= polls {
		add("Requeues", percent(share)+" of the reconciles ask for another one later (RequeueAfter): part of the load is the controller's own", "ask less often, or watch what is waited for")
	}

	if l.processes > 1 && fullest(l) >= uneven {
		add("Uneven", fmt.Sprintf("the process with the most work gets %s times the mean", number(l.fullest)), "look for objects that change much more often than others; a hash shares objects, not their load")
	}

	if l.share() >= saturated && c.Verdict != Stuck {
		add("Saturated", "the workers have no rest, so the queue does not tell how much work there is: the demand is at least what was measured", "follow the advice, then ask again")
	}

	if v.all.uptime > 0 && v.all.uptime < young {
		add("Young", fmt.Sprintf("a process is only %s old: it may still work on all objects of its first list", seconds(v.all.uptime)), "ask again later")
	}

	if 0 < l.work.count && l.work.count < few {
		add("FewReconciles", fmt.Sprintf("only %.0f reconciles ended in the interval, so percentiles are rough", l.work.count), "observe for longer: --for 5m")
	}
}

// conclude answers the question for all controllers of the processes.
func conclude(controllers []Controller, s *situation, question Question) Conclusion {
	c := Conclusion{Do: []string{}}

	var causes []string

	for i := range controllers {
		one := &controllers[i]
		if !one.Verdict.Problem() {
			continue
		}

		c.Problem = true

		causes = append(causes, one.Name+": "+string(one.Verdict))

		if one.Verdict == CPU {
			c.Shard = true
			c.Shards = s.cpuShards(question.Growth)
		}
	}

	switch {
	case c.Shard && c.Shards > s.processes:
		c.Text = fmt.Sprintf("It is time to shard: %s needed, and %s.", are(c.Shards, "shard"), runs(s.processes))
		c.Do = append(c.Do, "docs/sharding-your-controller.md shows how to shard it, in six steps. Run one shard more if the target shall be met while one is missing")
	case c.Shard:
		c.Shards = 0
		c.Text = "Shards help, but how many are needed is not known."
	case c.Problem:
		c.Text = "It is not time to shard: shards do not remove the bottleneck, or something cheaper does (" + strings.Join(causes, ", ") + ")."
	case question.Growth > 1:
		c.Text = fmt.Sprintf("There is no need to shard, and with %s times the load neither.", number(question.Growth))
	default:
		c.Text = "There is no need to shard."
	}

	return c
}

// are formats how many of something are needed.
func are(n int, one string) string {
	if n == 1 {
		return count(n, one) + " is"
	}

	return count(n, one) + " are"
}

// runs formats how many processes run.
func runs(n int) string {
	if n == 1 {
		return "1 process runs"
	}

	return count(n, "process") + " run"
}

// assumptions returns what the report relies on.
func assumptions(report *Report, loads []load, s *situation) []string {
	all := []string{
		"Times begin when an object enters the queue. The way of an event to the controller, delays of rate limiters, and backoff are not in them.",
		fmt.Sprintf("Plans take each controller as a queue M/G/c with bursts (Allen and Cunneen), whose load is what was measured, times %s. They leave %s of the workers, and %s of the CPU, free.",
			number(report.Growth), percent(1-busyLimit), percent(1-cpuPlan)),
		fmt.Sprintf("The fullest of several shards has %s of the mean load, as with a hash of names, unless more was measured. CPU grows as the load does.", percent(balance)),
	}

	lifetime, coarse := false, false

	for i := range loads {
		_, fresh := loads[i].service()
		lifetime = lifetime || !fresh && loads[i].done > 0
		coarse = coarse || loads[i].wait.count > 0 && !loads[i].wait.fine
	}

	if lifetime {
		all = append(all, "Where few reconciles ended in the interval, their times are those since the start of the process.")
	}

	if coarse {
		all = append(all, "Percentiles of waits are rough: the page has no native histograms, and the buckets of the queue's histogram are powers of ten.")
	}

	if s.limit == 0 {
		all = append(all, "The CPU limit is not known: name it with --cpu-limit.")
	}

	if !s.limiterKnown {
		all = append(all, "Whether the client waits for its own rate limit is not measured. The program can register it: metrics.RegisterRESTClientMetrics(metrics.MetricRateLimiterLatency, metrics.MetricRequestLatency) of controller-runtime's pkg/metrics.")
	}

	return append(all, memory(report.Processes))
}

// memory is the hint about memory.
func memory(processes []Process) string {
	const mebi = 1 << 20

	most, full := 0.0, 0.0

	for i := range processes {
		p := &processes[i]
		most = max(most, p.MemoryBytes)

		if p.MemoryLimitBytes > 0 {
			full = max(full, p.MemoryBytes/p.MemoryLimitBytes)
		}
	}

	text := fmt.Sprintf("Memory is no part of the advice. A process keeps up to %.0f MiB", most/mebi)
	if full > 0 {
		text += fmt.Sprintf(" (%s of its limit)", percent(full))
	}

	return text + "; shards divide what it caches of sharded kinds, and nothing else."
}
