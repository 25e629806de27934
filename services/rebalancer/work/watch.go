package work

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// Watch is what a watch of followers has shown. See [Table.Watch].
type Watch struct {
	t *Table
	// index contains the objects that the watch shows now, by the UIDs of their controllers; controllers is the reverse. They
	// are nil if there are too many. Then, only lists find what follows an object.
	index       map[types.UID]map[feed.ID]feed.Object
	controllers map[feed.ID]types.UID
	// listing reports whether a list is requested or in progress. since is the number of families when it began.
	listing bool
	since   int
	// position is the version that the watch has reached after the list.
	position string
	// proofs are writes that the watch has not shown yet. proven is the last family whose followers have all been shown.
	proofs []proof
	proven int
	// missed reports whether something that was shown could not be used. Then, only the next list proves something.
	missed bool
	// failing reports whether it cannot be read.
	failing bool
	// seen is the number of objects in the last list, and listed is when it ended.
	seen   int
	listed time.Time
}

// proof is a write to a resource. It began when begun families waited.
type proof struct {
	begun   int
	version string
}

// Begin records that a list begins.
func (w *Watch) Begin() {
	*w = Watch{
		t: w.t, index: map[types.UID]map[feed.ID]feed.Object{}, controllers: map[feed.ID]types.UID{},
		listing: true, since: w.t.followers.begun, proven: w.proven, failing: w.failing,
	}
}

// Listed records that the list is complete.
func (w *Watch) Listed(now time.Time) {
	if w.listing, w.listed, w.t.followers.news = false, now, true; !w.missed {
		w.proven = max(w.proven, w.since)
	}
}

// Failed records whether the watch cannot be read.
func (w *Watch) Failed(failing bool) { w.failing, w.t.followers.news = failing, true }

// Show records that the watch has shown an object, or that it is gone; then, o has no controller. It returns false if no
// family can be waiting for the object, or if the object is known in a later version: a list may show objects as they were
// when it began.
func (w *Watch) Show(o feed.Object) bool {
	if w.listing {
		w.seen++
	}

	return w.show(o) && len(w.t.families) > 0
}

// Reached records that the watch has reached a version, and whether something up to there could not be used.
func (w *Watch) Reached(version string, missed bool) {
	if w.missed = w.missed || missed; !w.listing {
		w.position = version
		w.prove()
	}
}

func (w *Watch) show(o feed.Object) bool {
	before, known := w.controllers[o.ID]
	if known && feed.Older(o.ResourceVersion, w.index[before][o.ID].ResourceVersion) {
		return false
	}

	if known {
		if delete(w.index[before], o.ID); len(w.index[before]) == 0 {
			delete(w.index, before)
		}

		delete(w.controllers, o.ID)
	}

	switch {
	case o.Controller == nil || w.index == nil:
		return true
	case len(w.controllers) >= maxIndexed:
		w.index, w.controllers = nil, nil
		return true
	}

	uid := o.Controller.UID
	if w.index[uid] == nil {
		w.index[uid] = map[feed.ID]feed.Object{}
	}

	w.index[uid][o.ID], w.controllers[o.ID] = o, uid

	return true
}

// wrote records a proof.
func (w *Watch) wrote(begun int, version string) {
	earlier := func(p proof) bool { return p.begun >= begun }
	if w.listing || begun <= w.proven || slices.ContainsFunc(w.proofs, earlier) {
		return
	}

	w.proofs = append(w.proofs, proof{begun, version})
	w.prove()
}

// prove uses the proofs that the watch has shown. Without an index, they prove nothing: nothing remembers what the watch has
// shown before a family began.
func (w *Watch) prove() {
	if w.missed || w.index == nil || w.position == "" {
		return
	}

	w.proofs = slices.DeleteFunc(w.proofs, func(p proof) bool {
		shown := !feed.Older(w.position, p.version)
		if shown && p.begun > w.proven {
			w.proven, w.t.followers.news = p.begun, true
		}

		return shown
	})
}

// again returns when the watch has to list again, for a family that seeks since a time.
func (w *Watch) again(since time.Time, busy bool) time.Time {
	cost := perList + time.Duration(w.seen)*PerObject
	next, patience := w.listed.Add(cost), proofShare*cost

	if busy {
		next, patience = w.listed.Add(busyShare*cost), busyShare*cost
	}

	if w.index == nil || w.failing {
		return next // no watch will show a proof, or what it proves is not remembered
	}

	if proof := since.Add(min(proofWithin, patience)); proof.After(next) {
		return proof
	}

	return next
}
