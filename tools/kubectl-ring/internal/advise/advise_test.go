package advise_test

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/advise"
)

var update = flag.Bool("update", false, "rewrite the golden file")

// page parses a page in the text format.
func page(t testing.TB, text string) advise.Page {
	t.Helper()

	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	require.NoError(t, err)

	return families
}

// controller is what a controller did in an interval.
type controller struct {
	name          string
	workers       int
	adds, done    float64
	failed        float64
	polled        float64
	reconcile     float64 // the mean time; 90 % of the reconciles take half of it, and 10 % the rest
	wait          float64 // the same
	before, after float64 // the queue
	unfinished    float64 // seconds of work in progress
}

// process is what a process did in an interval.
type process struct {
	cpu, limit         float64
	requests, refused  float64
	limiter, api       float64 // seconds; below 0: not registered
	memory, age, sched float64
	controllers        []controller
}

const interval = 100 // seconds

// epoch is the time of the second reading, in seconds since 1970.
const epoch = 2_000_000

// reading returns the two pages of a process. The first one has everything at an arbitrary count.
func (p process) reading(t testing.TB, name string) advise.Reading {
	t.Helper()

	return advise.Reading{
		Name: name, Before: page(t, p.text(0)), After: page(t, p.text(1)), Elapsed: interval * time.Second,
		At: time.Unix(epoch, 0), MemoryLimit: p.memory * 2,
	}
}

// text returns a page before (0) or after (1) the interval.
func (p process) text(after float64) string {
	var b strings.Builder

	kind := func(name, kind string) { fmt.Fprintf(&b, "# TYPE %s %s\n", name, kind) }
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	histogram := func(name, labels string, count, mean float64) { // after 1000 values of 1 ms
		count *= after

		if labels != "" {
			labels += ","
		}

		for _, bound := range []float64{0.001, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 1000, math.Inf(1)} {
			n := 1000.0
			if mean/2 <= bound {
				n += 0.9 * count
			}

			if mean*5.5 <= bound {
				n += 0.1 * count
			}

			line(`%s_bucket{%sle="%g"} %g`, name, labels, bound, math.Floor(n))
		}

		labels = strings.TrimSuffix(labels, ",")
		line("%s_sum{%s} %g", name, labels, 1+count*mean)
		line("%s_count{%s} %g", name, labels, 1000+math.Floor(count))
	}

	kind("process_cpu_seconds_total", "counter")
	line("process_cpu_seconds_total %g", 50+after*interval*p.cpu)
	kind("process_resident_memory_bytes", "gauge")
	line("process_resident_memory_bytes %g", p.memory)
	kind("process_start_time_seconds", "gauge")

	age := p.age
	if age == 0 {
		age = 3600
	}

	line("process_start_time_seconds %g", epoch-age)

	if p.limit > 0 {
		kind("go_sched_gomaxprocs_threads", "gauge")
		line("go_sched_gomaxprocs_threads %g", p.limit)
	}

	kind("go_sched_latencies_seconds", "histogram")
	histogram("go_sched_latencies_seconds", "", 10000, max(p.sched, 1e-5))
	kind("rest_client_requests_total", "counter")
	line(`rest_client_requests_total{code="200",method="GET",host="h"} %g`, 10+after*interval*(p.requests-p.refused))
	line(`rest_client_requests_total{code="429",method="GET",host="h"} %g`, after*interval*p.refused)

	if p.limiter >= 0 {
		kind("rest_client_rate_limiter_duration_seconds", "histogram")
		histogram("rest_client_rate_limiter_duration_seconds", `verb="GET"`, 1000, p.limiter/1000)
	}

	if p.api >= 0 {
		kind("rest_client_request_duration_seconds", "histogram")
		histogram("rest_client_request_duration_seconds", `verb="GET"`, 1000, (p.api+max(p.limiter, 0))/1000)
	}

	for _, metric := range []struct{ name, kind string }{
		{"controller_runtime_max_concurrent_reconciles", "gauge"}, {"controller_runtime_active_workers", "gauge"},
		{"controller_runtime_reconcile_total", "counter"}, {"controller_runtime_reconcile_time_seconds", "histogram"},
		{"workqueue_depth", "gauge"}, {"workqueue_adds_total", "counter"}, {"workqueue_queue_duration_seconds", "histogram"},
		{"workqueue_unfinished_work_seconds", "gauge"}, {"workqueue_longest_running_processor_seconds", "gauge"},
	} {
		kind(metric.name, metric.kind)

		for _, c := range p.controllers {
			labels := fmt.Sprintf(`controller=%q`, c.name)
			queue := labels + fmt.Sprintf(`,name=%q`, c.name)

			switch metric.name {
			case "controller_runtime_max_concurrent_reconciles":
				line("%s{%s} %d", metric.name, labels, c.workers)
			case "controller_runtime_active_workers":
				line("%s{%s} 1", metric.name, labels)
			case "controller_runtime_reconcile_total":
				line(`%s{%s,result="success"} %g`, metric.name, labels, 7+after*(c.done-c.failed-c.polled))
				line(`%s{%s,result="error"} %g`, metric.name, labels, after*c.failed)
				line(`%s{%s,result="requeue_after"} %g`, metric.name, labels, after*c.polled)
			case "controller_runtime_reconcile_time_seconds":
				histogram(metric.name, labels, c.done, c.reconcile)
			case "workqueue_depth":
				line(`%s{%s,priority="0"} %g`, metric.name, queue, c.before+after*(c.after-c.before))
			case "workqueue_adds_total":
				line("%s{%s} %g", metric.name, queue, 9+after*c.adds)
			case "workqueue_queue_duration_seconds":
				histogram(metric.name, queue, c.done, c.wait)
			default:
				line("%s{%s} %g", metric.name, queue, after*c.unfinished)
			}
		}
	}

	return b.String()
}

// one returns a process with one controller.
func one(c controller) process {
	if c.name == "" {
		c.name = "website"
	}

	return process{cpu: 0.1, limit: 4, requests: 40, limiter: 0, api: 1, memory: 200 << 20, controllers: []controller{c}}
}

// with changes a process.
func (p process) with(change func(*process)) process {
	change(&p)
	return p
}

// cases are situations, with the verdict about the first controller.
var cases = []struct {
	name      string
	processes []process
	question  advise.Question
	want      advise.Verdict
	shards    int // of the conclusion
}{
	{"idle", []process{one(controller{workers: 1})}, advise.Question{}, advise.Idle, 0},
	{"little load", []process{one(controller{workers: 2, adds: 100, done: 100, reconcile: 0.05, wait: 0.001})}, advise.Question{}, advise.Fine, 0},
	{"little load, but ten times as much", []process{one(controller{workers: 2, adds: 1000, done: 1000, reconcile: 0.05, wait: 0.001})}, advise.Question{Growth: 10}, advise.Workers, 0},
	{"little load that may grow", []process{one(controller{workers: 2, adds: 100, done: 100, reconcile: 0.05, wait: 0.001})}, advise.Question{Growth: 2}, advise.Fine, 0},
	{"all workers busy", []process{one(controller{workers: 1, adds: 990, done: 950, reconcile: 0.1, wait: 5, before: 10, after: 50})}, advise.Question{}, advise.Workers, 0},
	{"all workers busy, as the requests show", []process{one(controller{workers: 4, adds: 2000, done: 1900, reconcile: 0.2, wait: 5, before: 10, after: 110}).with(func(p *process) {
		p.api = 300
	})}, advise.Question{}, advise.Workers, 0},
	{"CPU is the limit", []process{one(controller{workers: 10, adds: 9000, done: 8800, reconcile: 0.1, wait: 2, before: 10, after: 210}).with(func(p *process) {
		p.cpu = 3.7
	})}, advise.Question{}, advise.CPU, 2},
	{"CPU is the limit of three times the load", []process{one(controller{workers: 10, adds: 3000, done: 3000, reconcile: 0.05, wait: 0.001}).with(func(p *process) {
		p.cpu = 1.5
	})}, advise.Question{Growth: 3}, advise.CPU, 2},
	{"CPU is throttled", []process{one(controller{workers: 10, adds: 3000, done: 3000, reconcile: 0.3, wait: 1}).with(func(p *process) {
		p.cpu, p.sched = 2.1, 0.05
	})}, advise.Question{}, advise.CPU, 2},
	{"shards whose CPU is full", []process{
		one(controller{workers: 10, adds: 9000, done: 9000, reconcile: 0.1, wait: 1}).with(func(p *process) { p.cpu = 3.6 }),
		one(controller{workers: 10, adds: 8000, done: 8000, reconcile: 0.1, wait: 1}).with(func(p *process) { p.cpu = 3.4 }),
		{cpu: 0.01, limit: 4, memory: 20 << 20, limiter: -1, api: -1}, // waits for its election
	}, advise.Question{}, advise.CPU, 3},
	{"one of two shards has too much work", []process{
		one(controller{workers: 1, adds: 100, done: 100, reconcile: 0.05, wait: 0.001}),
		one(controller{workers: 1, adds: 990, done: 900, reconcile: 0.1, wait: 5, before: 10, after: 100}),
	}, advise.Question{}, advise.Workers, 0},
	{"the CPU of one of two shards is full", []process{
		one(controller{workers: 10, adds: 9000, done: 9000, reconcile: 0.1, wait: 1}).with(func(p *process) { p.cpu = 3.6 }),
		one(controller{workers: 10, adds: 2000, done: 2000, reconcile: 0.1, wait: 1}).with(func(p *process) { p.cpu = 0.8 }),
	}, advise.Question{}, advise.CPU, 3},
	{"the client's limit", []process{one(controller{workers: 2, adds: 500, done: 480, reconcile: 0.4, wait: 3, before: 1, after: 20}).with(func(p *process) {
		p.requests, p.limiter = 20, 150
	})}, advise.Question{}, advise.ClientRateLimit, 0},
	{"a rate of requests like a limit", []process{one(controller{workers: 2, adds: 500, done: 480, reconcile: 0.4, wait: 3, before: 1, after: 20}).with(func(p *process) {
		p.requests, p.limiter, p.api = 20.5, -1, -1
	})}, advise.Question{}, advise.ClientRateLimit, 0},
	{"another rate of requests, not measured", []process{one(controller{workers: 2, adds: 500, done: 480, reconcile: 0.4, wait: 3, before: 1, after: 20}).with(func(p *process) {
		p.requests, p.limiter, p.api = 33, -1, -1
	})}, advise.Question{}, advise.Workers, 0},
	{"refused requests", []process{one(controller{workers: 2, adds: 500, done: 480, reconcile: 0.4, wait: 3, before: 1, after: 20}).with(func(p *process) {
		p.requests, p.refused = 30, 2
	})}, advise.Question{}, advise.APIServer, 0},
	{"errors", []process{one(controller{workers: 2, adds: 500, done: 480, failed: 300, reconcile: 0.4, wait: 3, before: 1, after: 20})}, advise.Question{}, advise.Errors, 0},
	{"errors without a problem", []process{one(controller{workers: 2, adds: 100, done: 100, failed: 30, reconcile: 0.05, wait: 0.001})}, advise.Question{}, advise.Fine, 0},
	{"a hot object", []process{one(controller{workers: 4, adds: 300, done: 300, reconcile: 0.31, wait: 0.3})}, advise.Question{}, advise.HotObject, 0},
	{"bursts", []process{one(controller{workers: 4, adds: 300, done: 300, reconcile: 0.1, wait: 2})}, advise.Question{}, advise.Bursts, 0},
	{"slow reconciles", []process{one(controller{workers: 4, adds: 30, done: 30, reconcile: 4, wait: 0.001})}, advise.Question{}, advise.SlowReconciles, 0},
	{"nothing ends", []process{one(controller{workers: 2, adds: 3, reconcile: 1, unfinished: 200, after: 1})}, advise.Question{}, advise.Stuck, 0},
	{"polls, in a young process", []process{one(controller{workers: 2, adds: 100, done: 100, polled: 90, reconcile: 0.05, wait: 0.001}).with(func(p *process) {
		p.age = 30
	})}, advise.Question{}, advise.Fine, 0},
	{"uneven shards", []process{
		one(controller{workers: 2, adds: 900, done: 900, reconcile: 0.05, wait: 0.001}), one(controller{workers: 2, adds: 100, done: 100, reconcile: 0.05, wait: 0.001}),
	}, advise.Question{}, advise.Fine, 0},
}

// TestVerdicts compares the advice about situations with testdata/verdicts.txt.
func TestVerdicts(t *testing.T) {
	var transcript strings.Builder

	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			report := adviseOn(t, c.processes, c.question)
			require.Equal(t, c.want, report.Controllers[0].Verdict, report.Controllers[0].Text)
			require.Equal(t, c.shards, report.Conclusion.Shards)
			require.Equal(t, c.want == advise.CPU, report.Conclusion.Shard)

			fmt.Fprintf(&transcript, "== %s\n", c.name)

			for _, controller := range report.Controllers {
				fmt.Fprintf(&transcript, "%s: %s\n", controller.Verdict, controller.Text)
				do(&transcript, controller.Do)

				if p := controller.Plan; p != nil {
					fmt.Fprintf(&transcript, "  plan: %d shards (%.2f s) or %d workers (%.2f s), room %.1f, burst %.1f\n",
						p.Shards, p.ShardsP99Seconds, p.WorkersPerProcess, p.WorkersP99Seconds, p.Room, controller.BurstSize)
				}

				for _, f := range controller.Findings {
					fmt.Fprintf(&transcript, "  %s: %s\n", f.Reason, f.Text)
					do(&transcript, f.Do)
				}
			}

			fmt.Fprintf(&transcript, "%s\n\n", report.Conclusion.Text)
		})
	}

	path := filepath.Join("testdata", "verdicts.txt")

	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o750))
		require.NoError(t, os.WriteFile(path, []byte(transcript.String()), 0o600))
	}

	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), transcript.String(), "%s; go test -update rewrites it", path)
}

func do(transcript *strings.Builder, text string) {
	if text != "" {
		fmt.Fprintf(transcript, "  -> %s\n", text)
	}
}

// adviseOn asks about processes. The target is 1 s, and the growth 1, if the question has none.
func adviseOn(t testing.TB, processes []process, question advise.Question) *advise.Report {
	t.Helper()

	if question.TargetP99 == 0 {
		question.TargetP99 = time.Second
	}

	question.Growth = max(question.Growth, 1)

	var readings []advise.Reading
	for i, p := range processes {
		readings = append(readings, p.reading(t, fmt.Sprintf("p%d", i)))
	}

	report, err := advise.Advise(readings, question)
	require.NoError(t, err)

	return report
}

// TestFigures verifies what is measured.
func TestFigures(t *testing.T) {
	report := adviseOn(t, []process{one(controller{
		workers: 4, adds: 500, done: 480, failed: 48, reconcile: 0.4, wait: 0.2, before: 3, after: 23, unfinished: 8,
	}).with(func(p *process) { p.refused, p.limiter, p.api = 4, 50, 25 })}, advise.Question{})
	c, p := report.Controllers[0], report.Processes[0]
	require.InDelta(t, 2, c.BusyWorkers, 1e-9, "480 × 0.4 s that ended, and 8 s that did not, of 100 s")
	require.InDelta(t, 0.5, c.Busy, 1e-9)
	require.InDelta(t, 5, c.ArrivalsPerSecond, 1e-9)
	require.InDelta(t, 4.8, c.ReconcilesPerSecond, 1e-9)
	require.InDelta(t, 0.1, c.ErrorShare, 1e-9)
	require.InDelta(t, 0.4, c.ReconcileMeanSeconds, 1e-9)
	require.InDelta(t, 0.2, c.WaitMeanSeconds, 1e-9)
	require.False(t, c.WaitExact)
	require.InDelta(t, 2.2, c.ReconcileP99Seconds, 0.5, "the longest tenth takes 2.2 s")
	require.Equal(t, []float64{3, 23}, []float64{c.QueueBefore, c.QueueAfter})

	require.InDelta(t, 0.1, p.CPUCores, 1e-9)
	require.InDelta(t, 4, p.CPULimitCores, 1e-9)
	require.InDelta(t, 40, p.RequestsPerSecond, 1e-9)
	require.InDelta(t, 4, p.ThrottledPerSecond, 1e-9)
	require.InDelta(t, 0.5, p.LimiterWorkers, 1e-9)
	require.InDelta(t, 0.25, p.RequestWorkers, 1e-9, "without the wait for the limiter")
	require.InDelta(t, 3600, p.UptimeSeconds, 1e-9)
}

// TestPagesOfNoUse verifies that errors say what was found.
func TestPagesOfNoUse(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "the page has no metrics",
		"a 1\nb 1\nc 1\nd 1\ne 1\nf 1\n": "6 metrics were found: a, b, c, d, e, ...",
		"# TYPE go_goroutines gauge\ngo_goroutines 1\n":                                                               "a Go program with other metrics",
		"# TYPE leader_election_master_status gauge\nleader_election_master_status{name=\"x\"} 0\n":                   "waits for its election",
		"# TYPE workqueue_adds_total counter\nworkqueue_adds_total{name=\"q\"} 1\n":                                   "work queues (q)",
		"# TYPE controller_runtime_reconcile_total counter\ncontroller_runtime_reconcile_total{controller=\"x\"} 0\n": "no controller has started",
	} {
		err := advise.Check(page(t, text))
		require.ErrorIs(t, err, advise.ErrNoControllers)
		require.ErrorContains(t, err, want)

		_, err = advise.Advise([]advise.Reading{{Before: page(t, text), After: page(t, text), Elapsed: time.Second}}, advise.Question{TargetP99: 1, Growth: 1})
		require.ErrorIs(t, err, advise.ErrNoControllers)
	}

	require.NoError(t, advise.Check(page(t, one(controller{workers: 1}).text(0))))
}

func TestRestartedProcess(t *testing.T) {
	r := one(controller{workers: 1}).reading(t, "p")
	r.After["process_start_time_seconds"].Metric[0].Gauge.Value = new(epoch + 1.0)
	_, err := advise.Advise([]advise.Reading{r}, advise.Question{TargetP99: time.Second, Growth: 1})
	require.ErrorIs(t, err, advise.ErrRestarted)
	require.ErrorContains(t, err, "process p")
}

// TestHistogramThatWasReset verifies that what was observed since a reset counts.
func TestHistogramThatWasReset(t *testing.T) {
	r := one(controller{workers: 1, adds: 100, done: 100, reconcile: 0.05, wait: 0.001}).reading(t, "p")
	for _, m := range r.Before["controller_runtime_reconcile_time_seconds"].GetMetric() {
		m.Histogram.SampleCount = new(uint64(1_000_000))
		m.Histogram.SampleSum = new(1e9)
	}

	report, err := advise.Advise([]advise.Reading{r}, advise.Question{TargetP99: time.Second, Growth: 1})
	require.NoError(t, err)
	require.InDelta(t, (1+100*0.05)/1100, report.Controllers[0].ReconcileMeanSeconds, 1e-9)
}

// TestAnyPages verifies that advice is consistent about whatever was measured: plans meet the target, more growth never needs less, and
// only CPU asks for shards.
func TestAnyPages(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		draw := func(name string, least, most float64) float64 { return rapid.Float64Range(least, most).Draw(rt, name) }

		var processes []process

		for range rapid.IntRange(1, 3).Draw(rt, "processes") {
			done := math.Floor(draw("done", 0, 5000))
			workers := rapid.IntRange(1, 20).Draw(rt, "workers")
			reconcile := min(draw("reconcile", 0.001, 3), float64(workers)*interval/max(done, 1))
			processes = append(processes, one(controller{
				workers: workers, done: done, adds: math.Floor(done * draw("more", 1, 1.5)), failed: math.Floor(done * draw("failed", 0, 0.5)),
				reconcile: reconcile, wait: draw("wait", 0, 5), after: math.Floor(draw("after", 0, 100)), unfinished: draw("unfinished", 0, 100),
			}).with(func(p *process) {
				p.cpu, p.limit = draw("cpu", 0, 4), rapid.SampledFrom([]float64{0, 4}).Draw(rt, "limit")
				p.refused, p.limiter, p.api = draw("refused", 0, 1), draw("limiter", -1, 50), draw("api", -1, 50)
			}))
		}

		question := advise.Question{TargetP99: time.Duration(draw("target", 0.01, 5) * float64(time.Second)), Growth: draw("growth", 1, 10)}
		report, more := adviseOn(t, processes, question), adviseOn(t, processes, advise.Question{TargetP99: question.TargetP99, Growth: question.Growth * 1.5})

		for i, c := range report.Controllers {
			require.NotEmpty(rt, c.Text)
			require.Equal(rt, c.Verdict.Problem(), c.Do != "", "a problem has a remedy: %+v", c)

			for _, x := range []float64{c.Busy, c.P99Seconds, c.WaitMeanSeconds, c.ReconcileP99Seconds, c.BurstSize} {
				require.False(rt, math.IsNaN(x) || math.IsInf(x, 0) || x < 0, "%+v", c)
			}

			if c.Plan == nil {
				continue
			}

			require.LessOrEqual(rt, c.Plan.ShardsP99Seconds, question.TargetP99.Seconds())
			require.LessOrEqual(rt, c.Plan.WorkersP99Seconds, question.TargetP99.Seconds())

			if m := more.Controllers[i].Plan; m.Shards > 0 {
				require.GreaterOrEqual(rt, m.Shards, c.Plan.Shards)
			}

			if m := more.Controllers[i].Plan; m.WorkersPerProcess > 0 {
				require.GreaterOrEqual(rt, m.WorkersPerProcess, c.Plan.WorkersPerProcess)
			}
		}

		if report.Conclusion.Problem {
			require.True(rt, more.Conclusion.Problem, "more load is no remedy")
		}
	})
}
