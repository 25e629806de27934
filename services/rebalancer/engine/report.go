package engine

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// Report is the progress of an engine towards its target.
type Report struct {
	work.Summary
	// Failures are messages about resources that cannot be read, sorted.
	Failures []string
	// Converged reports whether there is no obligation, every source is healthy, and a pass over all labeled objects has
	// found nothing. The pass began after the last change and after the settle period.
	Converged bool
	// Keyless are the objects without the label that is their key, as the last pass over all objects has counted them, by the names of
	// their resources. KeylessKnown is false if no such pass has ended since the keys changed.
	Keyless      []Keyless
	KeylessKnown bool
}

// Report returns the progress of the engine.
func (e *Engine) Report() Report {
	e.mu.Lock()
	defer e.mu.Unlock()

	r := Report{
		Summary:   e.table.Summary(),
		Failures:  slices.Compact(slices.Sorted(maps.Values(e.failures))),
		Converged: e.passes.verified && e.table.Empty() && len(e.failures) == 0 && !e.looking(),
	}

	r.Keyless, r.KeylessKnown = e.passes.keyless.report(e.target)

	if e.target != nil {
		r.Lost = sets.List(sets.New(r.Lost...).Union(e.lost).Difference(sets.New(e.target.View.WorkingShards()...)))
	}

	return r
}
