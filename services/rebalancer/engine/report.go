package engine

import (
	"cmp"
	"maps"
	"slices"

	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// Report is how far an engine is with its target.
type Report struct {
	// Unassigned is the number of objects that wait for a shard; Blocked that of those among them which cannot get one yet.
	Unassigned, Blocked int
	// BlockedExample is one of the blocked objects with the reason; empty if there is none.
	BlockedExample string
	// Misplaced is the number of objects that were found at another shard than they belong to and not yet asked for.
	Misplaced int
	// Draining is the number of objects that carry the drain label; Late that of those which have not been given up in time.
	Draining, Late int
	// LateExample is one of the late objects with its shard; empty if there is none.
	LateExample string
	// Failures are messages about resources that cannot be read, sorted.
	Failures []string
	// Clean says that everything that was found out of place has been dealt with. Settled says that after the settle period a
	// pass over all objects has found nothing more.
	Clean, Settled bool
}

// Report returns how far the engine is.
func (e *Engine) Report() Report {
	e.state.mu.Lock()
	defer e.state.mu.Unlock()

	s := e.state
	r := Report{
		Blocked:   len(s.blocked),
		Misplaced: len(s.swept),
		Draining:  len(s.draining),
		Failures:  slices.Sorted(maps.Values(s.failures)),
		Settled:   s.sweep.settled,
	}

	for id, o := range s.work {
		if _, asked := s.draining[id]; !asked && !e.available(o.Shard) {
			r.Unassigned++
		}
	}

	if id, ok := first(maps.Keys(s.blocked)); ok {
		r.BlockedExample = id.String() + ": " + s.blocked[id]
	}

	var late []objects.ID
	for id, d := range s.draining {
		if d.late {
			late = append(late, id)
		}
	}

	r.Late = len(late)
	if id, ok := first(slices.Values(late)); ok {
		r.LateExample = id.String() + " at shard " + s.draining[id].shard
	}

	r.Clean = s.sweep.clean && len(s.unlisted) == 0 && r.Unassigned == 0 && r.Draining == 0 && len(r.Failures) == 0
	r.Settled = r.Settled && r.Clean
	r.Failures = slices.Compact(r.Failures)

	return r
}

func (e *Engine) available(shard string) bool {
	t := e.Target()

	return t != nil && t.View.Available(shard)
}

// first returns the smallest ID, so that a report of the same state is the same.
func first(ids func(yield func(objects.ID) bool)) (objects.ID, bool) {
	all := slices.Collect(ids)
	if len(all) == 0 {
		return objects.ID{}, false
	}

	return slices.MinFunc(all, func(a, b objects.ID) int { return cmp.Compare(a.String(), b.String()) }), true
}
