package webhook

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/clusterring/clusterring/services/internal/admission"
)

// unknown stands for every ring that does not exist, so that callers cannot make up values of a label.
const unknown = "unknown"

// Metrics counts and times admission calls. It is safe for concurrent use.
type Metrics struct {
	requests *prometheus.CounterVec
	errors   *prometheus.CounterVec
	duration prometheus.Histogram
}

// NewMetrics returns metrics that have counted nothing. Register their [Metrics.Collectors].
func NewMetrics() *Metrics {
	return &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "clusterring_assigner_admission_requests_total",
			Help: "Admission requests answered, by ring and outcome. The ring is \"unknown\" if no ring has that name.",
		}, []string{"ring", "outcome"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "clusterring_assigner_admission_errors_total",
			Help: "HTTP requests that were answered with an error, by status code. 404: they were not sent to the registered path of a ring. Others: they were not admission reviews.",
		}, []string{"code"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "clusterring_assigner_admission_duration_seconds",
			Help:    "Time from the header of an admission request to its answer.",
			Buckets: prometheus.ExponentialBuckets(25e-6, 2, 16), // 25 µs to 0.8 s
		}),
	}
}

// Collectors returns the metrics for the registry of the service.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.errors, m.duration}
}

// Forget removes the counters of a ring that is gone.
func (m *Metrics) Forget(ring string) {
	m.requests.DeletePartialMatch(prometheus.Labels{"ring": ring})
}

func (m *Metrics) count(ring string, outcome admission.Outcome) {
	m.requests.WithLabelValues(ring, string(outcome)).Inc()
}

func (m *Metrics) refused(status int) {
	m.errors.WithLabelValues(strconv.Itoa(status)).Inc()
}
