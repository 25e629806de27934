package engine

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// Keyless is how many objects of a resource lack the label that is their key.
type Keyless struct {
	Resource schema.GroupResource
	Objects  int
	// Example is one of them.
	Example string
}

// add counts an object.
func (k *Keyless) add(o feed.Object) {
	if k.Objects++; k.Objects == 1 {
		k.Resource, k.Example = o.GVR.GroupResource(), o.String()
	}
}

// Report is the progress of an engine towards its target.
type Report struct {
	work.Summary
	// Failures are messages about resources that cannot be read, sorted.
	Failures []string
	// Converged reports whether there is no obligation, every source is healthy, and a pass over all labeled objects has
	// found nothing. The pass began after the last change and after the settle period.
	Converged bool
	// Settled are the resources of which the same is true alone: there is no obligation of the resource, its sources are
	// healthy, and a pass has found nothing. For a controlled resource, it is also true for all main resources.
	Settled sets.Set[schema.GroupResource]
	// Keyless are the objects without the label that is their key, as the last pass over all objects has counted them, by
	// the names of their resources. KeylessKnown is false if no such pass has ended since the keys changed.
	Keyless      []Keyless
	KeylessKnown bool
}

// Report returns the progress of the engine.
func (e *Engine) Report() Report {
	e.mu.Lock()
	defer e.mu.Unlock()

	r := Report{
		Summary:  e.table.Summary(),
		Failures: slices.Compact(slices.Sorted(maps.Values(e.failures))),
		Settled:  sets.New[schema.GroupResource](),
	}

	for _, l := range e.looks {
		if e.settled(l) {
			r.Settled.Insert(l.resource.GroupResource())
		}

		if l.keyless.Objects > 0 {
			r.Keyless = append(r.Keyless, l.keyless)
		}
	}

	uncounted := func(l *look) bool { return !l.counted.Covers(e.target) }
	if r.KeylessKnown = len(e.looks) > 0 && !slices.ContainsFunc(e.looks, uncounted); !r.KeylessKnown {
		r.Keyless = nil
	}

	r.Converged = e.target != nil && r.Settled.Len() == len(e.looks) && e.table.Empty()

	if e.target != nil {
		r.Lost = sets.List(sets.New(r.Lost...).Union(e.lost).Difference(sets.New(e.target.View.WorkingShards()...)))
	}

	return r
}

// ConvergedFor reports whether every object of a resource is in its place.
func (r Report) ConvergedFor(of schema.GroupResource) bool { return r.Converged || r.Settled.Has(of) }

// ReportBefore returns the report of an engine that is about to get another target: nothing is known about the places
// of its objects, and more shards are lost.
func (e *Engine) ReportBefore(t *Target) Report {
	r := e.Report()
	r.Converged, r.Settled = false, nil
	r.Lost = sets.List(sets.New(r.Lost...).Union(lostShards(e.Target(), t)).Delete(t.View.WorkingShards()...))

	return r
}

// settled reports whether every object of a resource was found in its place, and nothing else is known. The lock must
// be held.
func (e *Engine) settled(l *look) bool {
	if !l.verified || !l.still(e) {
		return false
	}

	for id := range e.failures {
		if slices.Contains(l.among, id.Of) {
			return false
		}
	}

	return true
}

// lookingFor reports whether some source may still find objects of a resource that it has not reported. The lock must
// be held.
func (e *Engine) lookingFor(of schema.GroupResource) bool {
	for id := range e.unlisted {
		if id.Of == of || id.Of.Empty() { // a source of all resources
			return true
		}
	}

	return e.relist
}

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
		Help: "Objects that lack the label or the namespace that is their key, and are assigned by their names, " +
			"by ring and resource, as of the last pass over all objects.",
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
	for _, of := range []*prometheus.MetricVec{
		moves.MetricVec, failures.MetricVec, lateDrains.MetricVec, audited.MetricVec, objectsNow.MetricVec,
		objectsKeyless.MetricVec,
	} {
		of.DeletePartialMatch(prometheus.Labels{"ring": ring})
	}
}
