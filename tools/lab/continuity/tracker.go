package continuity

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Counts are how many observations there were, and how many of them were within a limit.
type Counts struct{ All, Within int }

// Plus returns the counts with other ones.
func (c Counts) Plus(other Counts) Counts { return Counts{c.All + other.All, c.Within + other.Within} }

// Minus returns the counts since earlier ones.
func (c Counts) Minus(earlier Counts) Counts {
	return Counts{c.All - earlier.All, c.Within - earlier.Within}
}

// And returns the counts with another observation.
func (c Counts) And(took, limit time.Duration) Counts {
	if c.All++; took <= limit {
		c.Within++
	}

	return c
}

// Tracker counts how many changes of objects were worked on within a limit, without a record of them: it can go on for
// days. Create it with [NewTracker]; it is safe for concurrent use.
type Tracker struct {
	limit time.Duration

	mu       sync.Mutex
	observed map[types.UID]int64
	asked    map[types.UID][]change // that were not seen to be done

	done            Counts
	pending, worked int
	took            []time.Duration
}

type change struct {
	generation int64
	at         time.Duration
}

// NewTracker returns a tracker with a limit of the time from a change to the end of the work on it.
func NewTracker(limit time.Duration) *Tracker {
	return &Tracker{limit: limit, observed: map[types.UID]int64{}, asked: map[types.UID][]change{}}
}

// Changed records that a write has returned, which has given an object a generation.
func (t *Tracker) Changed(uid types.UID, generation int64, at time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.pending++
	t.asked[uid] = append(t.asked[uid], change{generation, at})
	t.settle(uid, at) // the watch may have been faster than the answer to the write
}

// Observed records that an object was seen, and that the controller has worked on it as of a generation. All changes up
// to that one are done, also those that the controller has skipped.
func (t *Tracker) Observed(uid types.UID, generation int64, at time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if before := t.observed[uid]; generation > before {
		t.observed[uid] = generation

		if before > 0 {
			t.worked++
		}
	}

	t.settle(uid, at)
}

// Deleted records that an object is gone. Nobody works on its changes.
func (t *Tracker) Deleted(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.pending -= len(t.asked[uid])
	delete(t.asked, uid)
	delete(t.observed, uid)
}

func (t *Tracker) settle(uid types.UID, at time.Duration) {
	t.asked[uid] = slices.DeleteFunc(t.asked[uid], func(c change) bool {
		if c.generation > t.observed[uid] {
			return false
		}

		t.done = t.done.And(at-c.at, t.limit)
		t.took = append(t.took, at-c.at)
		t.pending--

		return true
	})
}

// Totals returns the counts of the changes that were seen to be done, and the number of others. Worked is how often the
// controller was seen to have worked on changes of an object: on several at once if they are in its queue together.
func (t *Tracker) Totals() (done Counts, pending, worked int) {
	t.mu.Lock()
	defer t.mu.Unlock()

	return t.done, t.pending, t.worked
}

// Took returns how long each change took that was seen to be done since the last call.
func (t *Tracker) Took() []time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()

	took := t.took
	t.took = nil

	return took
}
