package advise

import (
	"cmp"
	"maps"
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
)

// Page is what a process served at /metrics: its metric families, by name.
type Page map[string]*dto.MetricFamily

// Metrics of controller-runtime, of its work queues, of client-go, and of the Go process.
const (
	workersMetric    = "controller_runtime_max_concurrent_reconciles"
	reconcilesMetric = "controller_runtime_reconcile_total"
	timeMetric       = "controller_runtime_reconcile_time_seconds"
	depthMetric      = "workqueue_depth"
	addsMetric       = "workqueue_adds_total"
	waitMetric       = "workqueue_queue_duration_seconds"
	unfinishedMetric = "workqueue_unfinished_work_seconds"
	requestsMetric   = "rest_client_requests_total"
	limiterMetric    = "rest_client_rate_limiter_duration_seconds"
	cpuMetric        = "process_cpu_seconds_total"
	startMetric      = "process_start_time_seconds"
	maxProcsMetric   = "go_sched_gomaxprocs_threads"
)

// label returns the value of a label. Empty: there is none.
func label(m *dto.Metric, name string) string {
	i := slices.IndexFunc(m.GetLabel(), func(pair *dto.LabelPair) bool { return pair.GetName() == name })
	if i < 0 {
		return ""
	}

	return m.GetLabel()[i].GetValue()
}

// series returns the series of a metric whose label has a value, if they are named. Older versions of
// controller-runtime put the name of a controller only into the label name of a queue.
func (p Page) series(metric string, labelled ...string) []*dto.Metric {
	return slices.DeleteFunc(slices.Clone(p[metric].GetMetric()), func(m *dto.Metric) bool {
		return len(labelled) > 0 && cmp.Or(label(m, labelled[0]), label(m, "name")) != labelled[1]
	})
}

// sum adds up the series of a metric. Of a histogram, it is the sum of what was observed.
func (p Page) sum(metric string, labelled ...string) float64 {
	total := 0.0
	for _, m := range p.series(metric, labelled...) {
		total += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue() +
			m.GetHistogram().GetSampleSum()
	}

	return total
}

// controllers returns the names of the controllers that run in the process.
func (p Page) controllers() []string {
	var names []string

	for _, m := range p.series(workersMetric) {
		if m.GetGauge().GetValue() > 0 {
			names = append(names, label(m, "controller"))
		}
	}

	return names
}

// values are what a histogram has observed.
type values struct {
	count, sum float64
	// buckets are the numbers of values by the highest value of a bucket.
	buckets map[float64]float64
}

// add adds what the histogram of a controller has observed since an earlier page.
func (v *values) add(before, after Page, metric string, labelled ...string) {
	old, now := &dto.Histogram{}, &dto.Histogram{}
	for _, m := range before.series(metric, labelled...) {
		old = m.GetHistogram()
	}

	for _, m := range after.series(metric, labelled...) {
		now = m.GetHistogram()
	}

	if now.GetSampleCount() < old.GetSampleCount() {
		old = &dto.Histogram{} // native histograms are reset from time to time
	}

	// Their resolution may change, too. The buckets of the text format are always there.
	buckets := classic
	if now.GetPositiveSpan() != nil && (old.GetSampleCount() == 0 || old.GetSchema() == now.GetSchema()) {
		buckets = native
	}

	v.count += float64(now.GetSampleCount() - old.GetSampleCount())
	v.sum += now.GetSampleSum() - old.GetSampleSum()

	for bound, n := range buckets(now) {
		v.buckets[bound] += n
	}

	for bound, n := range buckets(old) {
		v.buckets[bound] -= n
	}
}

// quantile returns what a share of the values does not exceed: the end of a bucket. 0: there are no values.
func (v *values) quantile(share float64) float64 {
	below := 0.0

	for _, bound := range slices.Sorted(maps.Keys(v.buckets)) {
		if below += v.buckets[bound]; below > 0 && below >= share*v.count {
			return bound
		}
	}

	return 0
}

// classic returns the numbers of values in the buckets of the text format. Values above the highest bound count as if
// they were at it.
func classic(h *dto.Histogram) map[float64]float64 {
	counts := map[float64]float64{}
	highest, below := 0.0, 0.0

	for _, b := range h.GetBucket() {
		if bound := b.GetUpperBound(); !math.IsInf(bound, 1) {
			highest = bound
		}

		counts[highest] += float64(b.GetCumulativeCount()) - below
		below = float64(b.GetCumulativeCount())
	}

	counts[highest] += float64(h.GetSampleCount()) - below

	return counts
}

// native returns the numbers of values in the exponential buckets of a native histogram, which are about 10 % wide.
func native(h *dto.Histogram) map[float64]float64 {
	counts := map[float64]float64{h.GetZeroThreshold(): float64(h.GetZeroCount())}
	deltas := h.GetPositiveDelta()
	index, count := int32(0), int64(0)

	for _, span := range h.GetPositiveSpan() {
		index += span.GetOffset()

		for range min(int(span.GetLength()), len(deltas)) {
			count, deltas = count+deltas[0], deltas[1:]
			counts[math.Exp2(float64(index)*math.Exp2(-float64(h.GetSchema())))] += float64(count)
			index++
		}
	}

	return counts
}
