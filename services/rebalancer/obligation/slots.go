package obligation

import (
	"time"

	"github.com/clusterring/clusterring/services/internal/invariants"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// slots counts what holds a slot: what was granted one, and what carries the drain label.
type slots struct {
	// inTime are all but the drains that are late.
	inTime int
	// own are all of a shard, late its drains that are late. There is no entry of 0.
	own, late map[string]int
	// wanted are the shards of which objects wait for a slot.
	wanted map[string]struct{}
	// turn is the shard whose waiting objects got the last slot, so that the next is another's.
	turn string
}

func newSlots() slots {
	return slots{own: map[string]int{}, late: map[string]int{}, wanted: map[string]struct{}{}}
}

// count adds n, 1 or -1, drains or grants of the shard.
func (s *slots) count(shard string, late bool, n int) {
	add(s.own, shard, n)

	if late {
		add(s.late, shard, n)
	} else {
		s.inTime += n
	}
}

func add(counts map[string]int, key string, n int) {
	if counts[key] += n; counts[key] == 0 {
		delete(counts, key)
	}
}

// free reports whether one more object of the shard may be drained. A shard with late drains does not acknowledge: it is asked for no
// more. Late drains hold no slot of the total.
func (t *Table) free(shard string) bool {
	return t.slots.late[shard] == 0 && t.slots.own[shard] < t.limits.PerShard && t.slots.inTime < t.limits.Drains
}

// Grant gives the object, which a worker has, a slot of its shard, and reports whether there was one.
func (t *Table) Grant(now time.Time, id objects.ID, shard string) bool {
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
		t.wakeSlots(now) // it may have held one of another shard
	}

	e.since = now

	return true
}

// slot sees to it that an object which no worker has holds a slot just while it carries the drain label.
func (t *Table) slot(now time.Time, e *entry) {
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

// hold gives an obligation a slot of the shard, or with "" none.
func (t *Table) hold(now time.Time, e *entry, shard string) {
	if e.holds != "" {
		t.slots.count(e.holds, e.late, -1)
	}

	if e.holds != shard {
		e.late, e.since = false, now
	}

	if e.holds = shard; shard != "" {
		t.slots.count(shard, e.late, 1)
	}
}
