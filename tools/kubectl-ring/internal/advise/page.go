package advise

import (
	"maps"
	"slices"

	dto "github.com/prometheus/client_model/go"
)

// Page is what a process served at /metrics: its metric families, by name.
type Page map[string]*dto.MetricFamily

// Metrics of controller-runtime, of its work queues, of client-go, and of the Go process.
const (
	workersMetric    = "controller_runtime_max_concurrent_reconciles"
	activeMetric     = "controller_runtime_active_workers"
	reconcilesMetric = "controller_runtime_reconcile_total"
	timeMetric       = "controller_runtime_reconcile_time_seconds"
	depthMetric      = "workqueue_depth"
	addsMetric       = "workqueue_adds_total"
	waitMetric       = "workqueue_queue_duration_seconds"
	unfinishedMetric = "workqueue_unfinished_work_seconds"
	longestMetric    = "workqueue_longest_running_processor_seconds"
	requestsMetric   = "rest_client_requests_total"
	limiterMetric    = "rest_client_rate_limiter_duration_seconds"
	latencyMetric    = "rest_client_request_duration_seconds"
	cpuMetric        = "process_cpu_seconds_total"
	memoryMetric     = "process_resident_memory_bytes"
	startMetric      = "process_start_time_seconds"
	maxProcsMetric   = "go_sched_gomaxprocs_threads"
	schedMetric      = "go_sched_latencies_seconds"
	leaderMetric     = "leader_election_master_status"
	goMetric         = "go_goroutines"
)

// match selects the series of a metric by their labels.
type match func(labels map[string]string) bool

// all selects every series.
func all(map[string]string) bool { return true }

// of selects the series of a controller. Older versions of controller-runtime put its name only into the label name of a queue.
func of(controller string) match {
	return func(labels map[string]string) bool {
		name, ok := labels["controller"]
		if !ok {
			name = labels["name"]
		}

		return name == controller
	}
}

func labels(m *dto.Metric) map[string]string {
	found := make(map[string]string, len(m.GetLabel()))
	for _, pair := range m.GetLabel() {
		found[pair.GetName()] = pair.GetValue()
	}

	return found
}

// series calls visit for each selected series of a metric.
func (p Page) series(name string, selected match, visit func(m *dto.Metric, labels map[string]string)) {
	for _, m := range p[name].GetMetric() {
		if l := labels(m); selected(l) {
			visit(m, l)
		}
	}
}

// sum returns the sum of the selected series of a counter or a gauge, and whether there is one.
func (p Page) sum(name string, selected match) (sum float64, found bool) {
	p.series(name, selected, func(m *dto.Metric, _ map[string]string) {
		found = true

		switch {
		case m.Counter != nil:
			sum += m.GetCounter().GetValue()
		case m.Gauge != nil:
			sum += m.GetGauge().GetValue()
		default:
			sum += m.GetUntyped().GetValue()
		}
	})

	return sum, found
}

// value is sum for a metric whose absence means 0.
func (p Page) value(name string, selected match) float64 {
	sum, _ := p.sum(name, selected)
	return sum
}

// sumBy returns the sums of a counter by the value of a label.
func (p Page) sumBy(name, label string, selected match) map[string]float64 {
	sums := map[string]float64{}

	p.series(name, selected, func(m *dto.Metric, labels map[string]string) { sums[labels[label]] += m.GetCounter().GetValue() })

	return sums
}

// controllers returns the names of the controllers that run in the process, sorted.
func (p Page) controllers() []string {
	names := map[string]bool{}

	p.series(workersMetric, all, func(m *dto.Metric, labels map[string]string) {
		if m.GetGauge().GetValue() > 0 {
			names[labels["controller"]] = true
		}
	})

	return slices.Sorted(maps.Keys(names))
}

// grown returns how much a counter has grown. A counter that is smaller than before was reset, and has counted from 0 since.
func grown(before, after float64) float64 {
	if after < before {
		return after
	}

	return after - before
}
