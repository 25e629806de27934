package work

import (
	"time"

	"github.com/clusterring/clusterring/services/internal/invariants"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// slots counts the obligations that hold a slot: it was granted to them, or they carry the drain label.
type slots struct {
	// inTime counts all of them, except late drains.
	inTime int
	// own counts them by shard, and late counts the late drains by shard. There is no entry of 0.
	own, late map[string]int
	// wanted are the shards with obligations that wait for a slot.
	wanted map[string]struct{}
	// turn is the shard that got the last free slot, so that the next one goes to another shard.
	turn string
}

func newSlots() slots {
	return slots{own: map[string]int{}, late: map[string]int{}, wanted: map[string]struct{}{}}
}

// count adds n drains or grants of the shard; n is 1 or -1.
func (s *slots) count(shard string, late bool, n int) {
	add(s.own, shard, n)

	if late {
		add(s.late, shard, n)
	} else {
		s.inTime += n
	}
}

func add[K comparable](counts map[K]int, key K, n int) {
	if counts[key] += n; counts[key] == 0 {
		delete(counts, key)
	}
}

// free reports whether one more object of the shard may be drained. A shard with late drains does not acknowledge drains, so
// it gets no more. Late drains hold no slot of the total.
func (t *Table) free(shard string) bool {
	return t.paused.IsZero() && t.slots.late[shard] == 0 && t.slots.own[shard] < t.limits.PerShard && t.slots.inTime < t.limits.Drains && t.window.open()
}

// Pause lets no further object be drained until a time; the zero time ends that. It reports whether drains have begun or ceased to be paused.
// Objects that are drained already are not affected.
func (t *Table) Pause(now, until time.Time) (changed bool) {
	if invariants.Enabled {
		defer t.check()
	}

	changed = t.paused.IsZero() != until.IsZero()
	if t.paused = until; until.IsZero() {
		t.wakeSlots(now)
	}

	return changed
}

// Grant gives the object, which a worker has, a slot of its shard. It reports whether a slot was free.
func (t *Table) Grant(now time.Time, id feed.ID, shard string) bool {
	if invariants.Enabled {
		defer t.check()
	}

	e, ok := t.entries[id]
	if !ok || e.phase != Moving || e.holds != shard && !t.free(shard) {
		return false
	}

	if e.holds != shard {
		t.hold(now, e, shard)
		t.count(e)
		t.wakeSlots(now) // it may have released a slot of another shard
	}

	e.since = now

	return true
}

// slot ensures that an object which no worker has holds a slot exactly while it carries the drain label.
func (t *Table) slot(now time.Time, e *entry) {
	if e.object.Shard != e.holds {
		t.window.released(now, e)
	}

	shard := ""
	if e.object.Draining {
		if shard = e.object.Shard; shard == "" {
			shard = e.holds
		}
	}

	if e.holds != shard {
		t.hold(now, e, shard)
		t.wakeSlots(now)
	}

	t.count(e)
}

// hold gives an obligation a slot of the shard; "" takes its slot away.
func (t *Table) hold(now time.Time, e *entry, shard string) {
	if e.holds != "" {
		t.slots.count(e.holds, e.late, -1)
	}

	if e.holds != shard {
		e.late, e.since = false, now
	}

	switch {
	case e.holds == "" && shard != "":
		t.window.begin(now, e)
	case shard == "" && e.object.Shard == e.holds: // it was not drained after all
		t.window.cancel(e)
	}

	if e.holds = shard; shard != "" {
		t.slots.count(shard, e.late, 1)
	}
}
