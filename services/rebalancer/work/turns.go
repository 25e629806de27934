package work

import (
	"k8s.io/apimachinery/pkg/types"
)

// turn separates moves of a main object from moves of the objects that follow it: between the read of an owner and the end of
// the write that is based on it, the owner is neither drained nor moved.
//
// Invariants:
//
//  1. Workers have the main object, or any number of its followers. Different main objects are independent of each other.
//  2. What does not get the turn is parked until the turn ends. No worker waits.
//  3. When a main object waits for its turn, no more of its followers join the turn in progress. It therefore gets its turn,
//     however many followers there are.
type turn struct {
	of types.UID
	// workers is the number of workers that have it. own reports whether it is the turn of the main object itself, and
	// deferred whether that one waits for it.
	workers       int
	own, deferred bool
}

// main returns the UID of the main object with which an obligation takes turns: itself, or the one that it follows.
func (t *Table) main(e *entry) types.UID {
	uid := e.object.UID

	if !t.isMain(e.object) {
		for _, above := range e.follows {
			if above != "" {
				uid = above
			}
		}
	}

	return uid
}

// takeTurn reports whether it is the turn of an obligation.
func (t *Table) takeTurn(e *entry) bool {
	of := t.main(e)
	if of == "" {
		return true
	}

	own, now := of == e.object.UID, t.turns[of]

	switch {
	case now == nil:
		now = &turn{of: of, own: own}
		t.turns[of] = now
	case own:
		now.deferred = true
		return false
	case now.own || now.deferred:
		return false
	}

	now.workers++
	e.turn = now

	return true
}

// endTurn records that no worker has an obligation anymore.
func (t *Table) endTurn(e *entry) {
	now := e.turn
	if e.turn = nil; now == nil {
		return
	}

	if now.workers--; now.workers == 0 {
		delete(t.turns, now.of)
		t.wake(TurnOf(now.of))
	}
}
