package pods

import "github.com/prometheus/client_golang/prometheus"

var (
	watched = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "clusterring_pod_watches",
		Help: "Namespaces whose Pods are watched, or cannot be watched at present, for shards that have ended. Reported by the replica that leads, with --pods.",
	})
	errs = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "clusterring_pod_watch_errors_total",
		Help: "Watches of Pods that failed or ended early. They are repeated. Until then, shards are given up only when their Leases expire.",
	})
)

// Collectors returns the metrics of the package for the registry of the service.
func Collectors() []prometheus.Collector { return []prometheus.Collector{watched, errs} }
