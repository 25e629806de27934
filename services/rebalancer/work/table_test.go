package work

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// In any history of a ring, the table keeps its invariants at each step. When the faults have stopped, and the current state
// of each object has been seen, the table becomes empty, and every object is in its place.
func TestAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)

		actions := map[string]func(*rapid.T){
			"":          w.check,
			"edit":      w.edit,
			"work":      w.work,
			"work more": w.work,
			"work on":   w.work,
			"see all":   w.seeAll,
			"delete":    w.delete,
			"list":      w.list,
			"sight":     w.sight,
			"sights":    w.sight,
			"take":      w.take,
			"take more": w.take,
			"read":      w.read,
			"decide":    w.decide,
			"report":    w.report,
			"report 2":  w.report,
			"time":      w.time,
			"ring":      w.ring,
			"lease":     w.lease,
			"answer":    w.acknowledge,
			"unlisted":  w.unlisted,
			"search":    func(*rapid.T) { w.table.Search() },
		}

		for range 3 { // long histories, with more combinations
			t.Repeat(actions)
		}

		w.settle(t)
	})
}

// before returns the obligations, except those of resources that have left the ring.
func (w *reference) before() (all []string) {
	for _, o := range w.table.sorted() {
		if w.table.entries[o].news != Dropped {
			all = append(all, o.Name)
		}
	}

	return all
}

// ended checks invariants 1 and 2 for each obligation that has ended: the newest reported version was in its place, or a debt
// requests a search for the object.
func (w *reference) ended(before []string) {
	owed, _ := w.table.Debt()
	w.owe(owed)

	for _, name := range before {
		if _, known := w.table.Has(id(name)); known {
			continue
		}

		last := w.history[name][w.newest[name]]

		switch {
		case name == w.released:
			require.NotEmpty(w, owed.Unseen, "%s was released, and no pass is requested", name)
		case w.table.Summary().More || owed.All || owed.Relist || len(owed.Lost) > 0 || len(owed.Misplaced) > 0:
		default:
			require.True(w, !last.exists || w.wants.inPlace(name, last.Object), "%s is forgotten, although it was seen at %s", name, describe(last.Object))
			require.False(w, w.doubt[name] > 0 && w.doubt[name] >= w.newest[name], "%s is forgotten, although a write may have been executed", name)
		}
	}

	w.forget()
}

// forget drops the records about objects that are no obligations.
func (w *reference) forget() {
	for _, name := range names {
		if _, known := w.table.Has(id(name)); !known {
			delete(w.newest, name)
			delete(w.doubt, name)
		}
	}
}

func (w *reference) owe(d Debt) {
	if d.All || len(d.Unseen) > 0 || d.Relist || len(d.Lost)+len(d.Misplaced) > 0 {
		w.owed = Debt{All: true}
	}
}

func (w *reference) check(t *rapid.T) {
	checkTable(t, w.table)

	limit := w.table.limits.Parked + len(shards)*2
	require.LessOrEqual(t, w.table.phases[Parked], limit)
}

// settle stops the faults, and lets sources and workers finish.
func (w *reference) settle(t *rapid.T) {
	w.calm, w.held = true, map[string]bool{}

	for range 300 {
		w.list(t)

		for len(w.sightings) > 0 {
			w.sight(t)
		}

		for _, name := range names {
			if o := w.at(name); o.exists && o.Draining && o.Shard != "" && w.wants.available[o.Shard] {
				w.becomes(name, "", false, true)
			}
		}

		w.finishAll(t)

		for range names {
			w.work(t)
		}

		w.check(t)

		if w.table.Empty() && w.settled() {
			_, later := w.table.Next()
			require.False(t, later, "an obligation is woken later")

			return
		}

		w.now = w.now.Add(time.Second)
	}

	require.Fail(t, "the table should become empty", "%s", w.describe(names...))
}

// finish lets a worker finish its job.
func (w *reference) finish(t *rapid.T, k *worker) {
	if k.stale && !k.decided {
		w.reads(t, k)
	}

	if !k.decided {
		w.decides(t, k)
	}

	w.reports(k)
}

func (w *reference) finishAll(t *rapid.T) {
	for len(w.workers) > 0 {
		w.finish(t, w.workers[0])
	}
}

func (w *reference) settled() bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		o := w.at(name)
		return o.exists && !w.wants.inPlace(name, o.Object)
	})
}

// describe describes objects, and what the table knows about them.
func (w *reference) describe(names ...string) (s string) {
	for _, name := range names {
		if e, ok := w.table.entries[id(name)]; ok {
			s += fmt.Sprintf("%s is %s with %s, seen %s; ", name, e.phase, describe(e.object), e.seen)
		}

		s += fmt.Sprintf("%s is at %s, exists: %t, and belongs to %s\n", name, describe(w.at(name).Object), w.at(name).exists, w.wants.wants[name])
	}

	return s
}

func reported(out Outcome) string {
	s := out.Event.String()
	if out.Object != nil {
		s += " " + describe(*out.Object)
	}

	if out.Event == Blocked {
		s += " because " + out.Cause.String()
	}

	return fmt.Sprintf("%s, stale: %t", s, out.Stale)
}
