package work

import (
	"container/list"
	"maps"
	"slices"
	"time"

	"github.com/clusterring/clusterring/services/internal/invariants"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

const (
	// movesAtOnce is how many planned moves run at a time. The more run, the longer each object is without a shard, because
	// writes wait for the API server; with fewer, the API server is idle while shards acknowledge.
	movesAtOnce = 32
	// moveCounts is how long a planned move counts. A shard may work on an object for long before it releases it; others
	// need not wait for that.
	moveCounts = time.Second
)

// permits counts the obligations that hold a permit to be drained: it was granted to them, or they carry the drain label.
type permits struct {
	// inTime counts all of them, except late drains.
	inTime int
	// own counts them by shard, and late counts the late drains by shard. There is no entry of 0.
	own, late map[string]int
	// wanted are the shards with obligations that wait for a permit.
	wanted map[string]struct{}
	// turn is the shard that got the last free permit, so that the next one goes to another shard.
	turn string
	// moves are the times at which planned moves began that still count. A move runs from the moment at which the object may
	// be drained, until the object is in its place.
	moves list.List
}

func newPermits() permits {
	return permits{own: map[string]int{}, late: map[string]int{}, wanted: map[string]struct{}{}}
}

// count adds n drains or grants of the shard; n is 1 or -1.
func (s *permits) count(shard string, late bool, n int) {
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

// open reports whether one more planned move may begin.
func (s *permits) open() bool { return s.moves.Len() < movesAtOnce }

// begin records that an object may be drained, or that it is.
func (s *permits) begin(now time.Time, e *entry) {
	s.leave(e)
	e.move = s.moves.PushBack(now)
}

// leave makes the planned move of an obligation no longer count, if it does.
func (s *permits) leave(e *entry) {
	if e.move != nil {
		s.moves.Remove(e.move) // it does nothing if the move has expired
	}
}

// next returns when the first planned move no longer counts; ok is false if none counts.
func (s *permits) next() (at time.Time, ok bool) {
	first := s.moves.Front()
	if first == nil {
		return time.Time{}, false
	}

	return first.Value.(time.Time).Add(moveCounts), true //nolint:forcetypeassert // begin adds nothing else
}

// expire makes the moves no longer count that have counted for long enough, and reports whether there were any.
func (s *permits) expire(now time.Time) (some bool) {
	for at, ok := s.next(); ok && !now.Before(at); at, ok = s.next() {
		s.moves.Remove(s.moves.Front())

		some = true
	}

	return some
}

// free reports whether one more object of the shard may be drained. A shard with late drains does not acknowledge drains, so
// it gets no more. Late drains hold no permit of the total.
func (t *Table) free(shard string) bool {
	p := &t.permits

	return t.paused.IsZero() && p.late[shard] == 0 && p.own[shard] < t.limits.PerShard && p.inTime < t.limits.Drains && p.open()
}

// Pause lets no further object be drained until a time; the zero time ends that. It reports whether drains have begun or
// ceased to be paused. Objects that are drained already are not affected.
func (t *Table) Pause(now, until time.Time) (changed bool) {
	if invariants.Enabled {
		defer t.check()
	}

	changed = t.paused.IsZero() != until.IsZero()
	if t.paused = until; until.IsZero() {
		t.grantNext(now)
	}

	return changed
}

// Grant gives the object, which a worker has, a permit of its shard. It reports whether one was free.
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
		t.grantNext(now) // it may have given back a permit of another shard
	}

	e.since = now

	return true
}

// permit ensures that an object which no worker has holds a permit exactly while it carries the drain label.
func (t *Table) permit(now time.Time, e *entry) {
	shard := ""
	if e.object.Draining {
		if shard = e.object.Shard; shard == "" {
			shard = e.holds
		}
	}

	if e.holds != shard {
		t.hold(now, e, shard)
		t.grantNext(now)
	}

	t.count(e)
}

// hold gives an obligation a permit of the shard; "" takes its permit away.
func (t *Table) hold(now time.Time, e *entry, shard string) {
	if e.holds != "" {
		t.permits.count(e.holds, e.late, -1)
	}

	if e.holds != shard {
		e.late, e.since = false, now
	}

	switch {
	case e.holds == "" && shard != "":
		t.permits.begin(now, e)
	case shard == "" && e.object.Shard == e.holds: // it was not drained after all
		t.permits.leave(e)
	}

	if e.holds = shard; shard != "" {
		t.permits.count(shard, e.late, 1)
	}
}

// grantNext wakes as many obligations as there are free permits, the shards in turn. They hold their permits from now on.
func (t *Table) grantNext(now time.Time) {
	if len(t.permits.wanted) == 0 || !t.permits.open() {
		return
	}

	shards := slices.DeleteFunc(slices.Collect(maps.Keys(t.permits.wanted)), func(s string) bool { return !t.free(s) })
	slices.Sort(shards)

	for len(shards) > 0 && t.permits.inTime < t.limits.Drains && t.permits.open() {
		i, found := slices.BinarySearch(shards, t.permits.turn)
		if found {
			i++
		}

		shard := shards[i%len(shards)]
		t.permits.turn = shard

		if !t.grantOne(now, shard) || !t.free(shard) {
			shards = slices.DeleteFunc(shards, func(s string) bool { return s == shard })
		}
	}
}

// grantOne gives a permit of the shard to one obligation that waits for it, and reports whether there was one.
func (t *Table) grantOne(now time.Time, shard string) bool {
	c := PermitOf(shard)

	w, ok := t.parked[c]
	if !ok {
		return false
	}

	e := w.first()
	if e == nil {
		t.repay(c, w)
		return false
	}

	t.hold(now, e, shard)
	t.move(e, Woken)

	return true
}
