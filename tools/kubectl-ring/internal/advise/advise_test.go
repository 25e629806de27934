package advise_test

import (
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

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
	name       string
	workers    int
	adds, done float64
	reconcile  float64 // the mean time
	wait       float64 // the mean; 90 % of the waits take half of it, and 10 % the rest
	after      float64 // objects in the queue
	unfinished float64 // seconds of work in progress
}

// process is what a process did in an interval.
type process struct {
	cpu, limit        float64
	requests, refused float64
	limiter           float64 // seconds; below 0: not registered
	controllers       []controller
}

const interval = 100 // seconds

// reading returns the two pages of a process. The first one has everything at an arbitrary count.
func (p process) reading(t testing.TB, name string) advise.Reading {
	t.Helper()

	return advise.Reading{
		Name: name, Before: page(t, p.text(0)), After: page(t, p.text(1)), Elapsed: interval * time.Second,
	}
}

// text returns a page before (0) or after (1) the interval.
func (p process) text(after float64) string {
	var b strings.Builder

	kind := func(name, kind string) { fmt.Fprintf(&b, "# TYPE %s %s\n", name, kind) }
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	histogram := func(name, labels string, count, mean float64) { // after 1000 values of 1 ms
		count *= after

		for _, bound := range []float64{0.001, 0.01, 0.1, 1, 10, 100, 1000, math.Inf(1)} {
			n := 1000.0
			if mean/2 <= bound {
				n += 0.9 * count
			}

			if mean*5.5 <= bound {
				n += 0.1 * count
			}

			line(`%s_bucket{%s,le="%g"} %g`, name, labels, bound, math.Floor(n))
		}

		line("%s_sum{%s} %g", name, labels, 1+count*mean)
		line("%s_count{%s} %g", name, labels, 1000+math.Floor(count))
	}

	kind("process_cpu_seconds_total", "counter")
	line("process_cpu_seconds_total %g", 50+after*interval*p.cpu)
	kind("process_start_time_seconds", "gauge")
	line("process_start_time_seconds 2e6")

	if p.limit > 0 {
		kind("go_sched_gomaxprocs_threads", "gauge")
		line("go_sched_gomaxprocs_threads %g", p.limit)
	}

	kind("rest_client_requests_total", "counter")
	line(`rest_client_requests_total{code="200",method="GET",host="h"} %g`, 10+after*interval*(p.requests-p.refused))
	line(`rest_client_requests_total{code="429",method="GET",host="h"} %g`, after*interval*p.refused)

	if p.limiter >= 0 {
		kind("rest_client_rate_limiter_duration_seconds", "histogram")
		histogram("rest_client_rate_limiter_duration_seconds", `verb="GET"`, 1000, p.limiter/1000)
	}

	for _, metric := range []struct{ name, kind string }{
		{"controller_runtime_max_concurrent_reconciles", "gauge"},
		{"controller_runtime_reconcile_total", "counter"}, {"controller_runtime_reconcile_time_seconds", "histogram"},
		{"workqueue_depth", "gauge"}, {"workqueue_adds_total", "counter"}, {"workqueue_queue_duration_seconds", "histogram"},
		{"workqueue_unfinished_work_seconds", "gauge"},
	} {
		kind(metric.name, metric.kind)

		for _, c := range p.controllers {
			labels := fmt.Sprintf(`controller=%q`, c.name)
			queue := labels + fmt.Sprintf(`,name=%q`, c.name)

			switch metric.name {
			case "controller_runtime_max_concurrent_reconciles":
				line("%s{%s} %d", metric.name, labels, c.workers)
			case "controller_runtime_reconcile_total":
				line(`%s{%s,result="success"} %g`, metric.name, labels, 7+after*c.done/2)
				line(`%s{%s,result="requeue_after"} %g`, metric.name, labels, after*c.done/2)
			case "controller_runtime_reconcile_time_seconds":
				histogram(metric.name, labels, c.done, c.reconcile)
			case "workqueue_depth":
				line(`%s{%s,priority="0"} %g`, metric.name, queue, after*c.after)
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

	return process{cpu: 0.1, limit: 4, requests: 40, controllers: []controller{c}}
}

// with changes a process.
func (p process) with(change func(*process)) process {
	change(&p)
	return p
}

// Loads of a controller with ten workers, most of which are free, or all of which are busy.
var (
	little = controller{workers: 10, adds: 1000, done: 1000, reconcile: 0.05, wait: 0.001}
	busy   = controller{workers: 10, adds: 9900, done: 9000, reconcile: 0.1, wait: 5, after: 900}
	late   = controller{workers: 10, adds: 1000, done: 1000, reconcile: 0.05, wait: 5}
)

// cases are situations, with the verdicts about the controllers.
var cases = []struct {
	name      string
	processes []process
	want      []advise.Verdict
	shards    int
}{
	{"nothing to do", []process{one(controller{workers: 1})}, []advise.Verdict{advise.Fine}, 0},
	{"little load", []process{one(little)}, []advise.Verdict{advise.Fine}, 0},
	{"all workers busy", []process{one(busy)}, []advise.Verdict{advise.Workers}, 0},
	{
		"all workers busy with reconciles that do not end",
		[]process{one(controller{workers: 2, adds: 3, unfinished: 200, after: 1})}, []advise.Verdict{advise.Workers}, 0,
	},
	{"free workers, but long waits", []process{one(late)}, []advise.Verdict{advise.Workers}, 0},
	{"workers of one of two shards busy", []process{one(little), one(busy)}, []advise.Verdict{advise.Workers}, 0},
	{"CPU full", []process{one(busy).with(func(p *process) { p.cpu = 3.7 })}, []advise.Verdict{advise.Shard}, 2},
	{"CPU far above its limit", []process{one(busy).with(func(p *process) {
		p.cpu, p.limit = 0.99, 0.33
	})}, []advise.Verdict{advise.Shard}, 6},
	{"CPU full, and nothing waits yet", []process{one(little).with(func(p *process) {
		p.cpu = 3.3
		p.controllers = append(p.controllers, controller{
			name: "small", workers: 1, adds: 10, done: 10, reconcile: 0.05, wait: 0.001,
		})
	})}, []advise.Verdict{advise.Fine, advise.Shard}, 2},
	{"CPU full of two shards, beside one that waits for its election", []process{
		one(busy).with(func(p *process) {
			p.cpu = 3.6
		}), one(busy).with(func(p *process) { p.cpu = 3.4 }), {cpu: 0.01, limit: 4, limiter: -1},
	}, []advise.Verdict{advise.ShardMore}, 4},
	{"CPU full of one of two shards", []process{one(late).with(func(p *process) {
		p.cpu = 3.6
	}), one(little)}, []advise.Verdict{advise.ShardMore}, 3},
	{"CPU not known", []process{one(busy).with(func(p *process) {
		p.cpu, p.limit = 3.7, 0
	})}, []advise.Verdict{advise.Workers}, 0},
	{"the client's limit", []process{one(busy).with(func(p *process) {
		p.limiter = 300
	})}, []advise.Verdict{advise.Limited}, 0},
	{"the client's limit, and free workers", []process{one(little).with(func(p *process) {
		p.limiter = 30
	})}, []advise.Verdict{advise.Fine}, 0},
	{"short waits for the client's limit", []process{one(busy).with(func(p *process) {
		p.limiter = 100
	})}, []advise.Verdict{advise.Workers}, 0},
	{"a rate of requests like a limit", []process{one(busy).with(func(p *process) {
		p.requests, p.limiter = 20.5, -1
	})}, []advise.Verdict{advise.Limited}, 0},
	{"a mean rate of requests like a limit", []process{
		one(busy).with(func(p *process) {
			p.requests, p.limiter = 2, -1
		}), one(busy).with(func(p *process) { p.requests, p.limiter = 38, -1 }),
	}, []advise.Verdict{advise.Workers}, 0},
	{"a rate of requests like a limit, but it is known", []process{one(busy).with(func(p *process) {
		p.requests = 20.5
	})}, []advise.Verdict{advise.Workers}, 0},
	{"a rate of requests like a limit, but CPU full", []process{one(busy).with(func(p *process) {
		p.requests, p.limiter, p.cpu = 20.5, -1, 3.7
	})}, []advise.Verdict{advise.Shard}, 2},
	{"another rate of requests", []process{one(busy).with(func(p *process) {
		p.requests, p.limiter = 33, -1
	})}, []advise.Verdict{advise.Workers}, 0},
	{"refused requests", []process{one(busy).with(func(p *process) {
		p.requests, p.refused, p.cpu = 30, 2, 3.7
	})}, []advise.Verdict{advise.Limited}, 0},
	{"few refused requests", []process{one(busy).with(func(p *process) {
		p.requests, p.refused = 300, 2
	})}, []advise.Verdict{advise.Workers}, 0},
}

// TestVerdicts compares the advice about situations with testdata/verdicts.txt.
func TestVerdicts(t *testing.T) {
	var transcript strings.Builder

	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			report := adviseOn(t, c.processes, time.Second)
			fmt.Fprintf(&transcript, "== %s\n", c.name)

			var verdicts []advise.Verdict

			shards := 0

			for _, controller := range report.Controllers {
				verdicts = append(verdicts, controller.Verdict)
				shards += controller.Shards
				fmt.Fprintf(&transcript, "%s, %s: %s\n", controller.Name, controller.Verdict, controller.Reason)

				if controller.Do != "" {
					fmt.Fprintf(&transcript, "  -> %s\n", controller.Do)
				}
			}

			require.Equal(t, c.want, verdicts)
			require.Equal(t, c.shards, shards)
			transcript.WriteByte('\n')
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

func adviseOn(t testing.TB, processes []process, target time.Duration) *advise.Report {
	t.Helper()

	var readings []advise.Reading
	for i, p := range processes {
		readings = append(readings, p.reading(t, fmt.Sprintf("p%d", i)))
	}

	require.NoError(t, advise.Check(readings))
	report, err := advise.Advise(readings, target)
	require.NoError(t, err)

	return report
}

// TestNativeHistograms verifies that what was observed between two pages counts, in buckets of 10 %, also if the
// histogram was reset, or if its resolution has changed. The page in the text format has powers of ten.
func TestNativeHistograms(t *testing.T) {
	waits := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "workqueue_queue_duration_seconds", Help: "Waits.", Buckets: prometheus.ExponentialBuckets(10e-9, 10, 12),
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 10,
	}, []string{"name"})
	registry := prometheus.NewRegistry()
	registry.MustRegister(waits)

	running := page(t, one(little).text(0))
	read := func() advise.Page {
		families, err := registry.Gather()
		require.NoError(t, err)

		read := maps.Clone(running)
		delete(read, "workqueue_queue_duration_seconds")

		for _, family := range families {
			read[family.GetName()] = family
		}

		return read
	}
	p50 := func(before, after advise.Page) float64 {
		report, err := advise.Advise([]advise.Reading{{Before: before, After: after, Elapsed: time.Second}}, time.Second)
		require.NoError(t, err)

		return report.Controllers[0].QueueP50Seconds
	}
	observe := func(n int, seconds float64) {
		for range n {
			waits.WithLabelValues("website").Observe(seconds)
		}
	}

	none := read()
	observe(100, 0.2)

	first := read()
	require.InEpsilon(t, 0.2, p50(none, first), 0.1)
	observe(10, 2)

	second := read()
	require.InEpsilon(t, 2, p50(first, second), 0.1, "what was observed before does not count")
	require.InEpsilon(t, 0.2, p50(none, second), 0.1)
	require.InEpsilon(t, 0.2, p50(second, first), 0.1, "a histogram that was reset counts from then on")
	require.Zero(t, p50(second, second))

	for i := range 30 {
		observe(1, 3+float64(i))
	}

	coarse := read()
	require.NotEqual(t, *second["workqueue_queue_duration_seconds"].GetMetric()[0].GetHistogram().Schema,
		*coarse["workqueue_queue_duration_seconds"].GetMetric()[0].GetHistogram().Schema)
	require.InDelta(t, 100, p50(second, coarse), 1e-9, "30 values of 3 to 32")
	observe(100, 5000)
	require.InDelta(t, 1000, p50(second, read()), 1e-9, "the highest bound")
}

// TestPagesOfNoUse verifies that pages without a running controller, and of a process that restarted, are errors.
func TestPagesOfNoUse(t *testing.T) {
	for _, text := range []string{"", "# TYPE go_goroutines gauge\ngo_goroutines 1\n", one(controller{}).text(0)} {
		require.ErrorContains(t, advise.Check([]advise.Reading{{Before: page(t, text)}}),
			"no controller of controller-runtime runs")
	}

	lost := advise.Reading{
		Before: page(t, one(little).text(0)), After: page(t, one(controller{}).text(1)), Elapsed: time.Second,
	}
	_, err := advise.Advise([]advise.Reading{lost}, time.Second)
	require.ErrorContains(t, err, "no controller of controller-runtime runs")

	r := one(little).reading(t, "p")
	r.After["process_start_time_seconds"].Metric[0].Gauge.Value = new(2e6 + 2)
	_, err = advise.Advise([]advise.Reading{r}, time.Second)
	require.ErrorContains(t, err, "p restarted while it was observed")
}
