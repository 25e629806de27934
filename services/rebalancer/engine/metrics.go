package engine

import "github.com/prometheus/client_golang/prometheus"

var (
	moves = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "clusterring_rebalancer_writes_total",
		Help: "Writes of labels, by ring, resource and action: assign, drain, withdraw or release.",
	}, []string{"ring", "resource", "verb"})
	failures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "clusterring_rebalancer_failures_total",
		Help: "Failed attempts to move an object, which will be retried, by ring. Conflicts do not count.",
	}, []string{"ring"})
	lateDrains = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "clusterring_rebalancer_late_drains_total",
		Help: "Drains that a shard did not acknowledge in time, by ring. The log and the ring's status name the shards.",
	}, []string{"ring"})
	audited = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "clusterring_rebalancer_audit_found_total",
		Help: "Objects that only the audit found out of place, while the ring was converged, by ring. It should stay 0.",
	}, []string{"ring"})
	objectsNow = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "clusterring_rebalancer_objects",
		Help: "Objects that are not in their place, by ring and state: unassigned, blocked, misplaced, draining or late.",
	}, []string{"ring", "state"})
	objectsKeyless = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "clusterring_rebalancer_objects_without_key",
		Help: "Objects that lack the label or the namespace that is their key, and are assigned by their names, by ring and resource, as of the last pass over all objects.",
	}, []string{"ring", "resource"})
)

// Collectors returns the metrics of all engines for the registry of the service.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{moves, failures, lateDrains, audited, objectsNow, objectsKeyless}
}

// Publish sets the gauges of the named ring.
func (r Report) Publish(ring string) {
	for state, n := range map[string]int{
		"unassigned": r.Unassigned, "blocked": r.Blocked, "misplaced": r.Misplaced, "draining": r.Draining, "late": r.Late,
	} {
		objectsNow.WithLabelValues(ring, state).Set(float64(n))
	}

	if !r.KeylessKnown {
		return
	}

	objectsKeyless.DeletePartialMatch(prometheus.Labels{"ring": ring})

	for _, k := range r.Keyless {
		objectsKeyless.WithLabelValues(ring, k.Resource.String()).Set(float64(k.Objects))
	}
}

// Forget drops all metrics of a deleted ring.
func Forget(ring string) {
	of := prometheus.Labels{"ring": ring}
	moves.DeletePartialMatch(of)
	failures.DeletePartialMatch(of)
	lateDrains.DeletePartialMatch(of)
	audited.DeletePartialMatch(of)
	objectsNow.DeletePartialMatch(of)
	objectsKeyless.DeletePartialMatch(of)
}
