package shard

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// The metrics of shards are registered with controller-runtime's registry, so that a manager serves them.
var (
	waitingObjects = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "clusterring_shard_waiting_objects",
		Help: "Objects that the shard does not work on yet, because its cache does not show all that follows them.",
	}, []string{"ring"})
	waitedSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "clusterring_shard_wait_seconds",
		Help: "How long objects waited until the cache showed all that follows them. Objects that did not have to wait are not counted.",
		// From a watch that is slightly late to a watch that has to start again.
		Buckets: prometheus.ExponentialBuckets(0.01, 4, 8), //nolint:mnd // 10 ms to 160 s
	}, []string{"ring"})
)

func init() { metrics.Registry.MustRegister(waitingObjects, waitedSeconds) }

// waitMetrics are the metrics of the waiting objects of one ring.
type waitMetrics struct {
	objects prometheus.Gauge
	took    prometheus.Observer
}

func waitMetricsOf(ring string) waitMetrics {
	return waitMetrics{objects: waitingObjects.WithLabelValues(ring), took: waitedSeconds.WithLabelValues(ring)}
}
