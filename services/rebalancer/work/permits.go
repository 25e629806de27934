package work

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

const (
	// movesAtOnce is how many planned moves run at a time. The fewer run, the slower are moves between shards that take
	// long to acknowledge: as many begin in a second. With 8, joins are slower, and with 32 no faster.
	movesAtOnce = 16
	// ownersAtOnce is the same for objects that others may follow. Such an object has no shard while these move, and the
	// more move, the longer their writes wait: owners of 3 children have none for 0.02 s with 4, 0.05 s with 8, and 0.10 s
	// with 16.
	ownersAtOnce = 4
	// moveCounts is how long a planned move counts. A shard may work on an object for long before it releases it; others
	// need not wait for that.
	moveCounts = time.Second
)

// tooSilent is the number of late drains in a row after which a shard is taken to release no objects of a resource.
const tooSilent = 2

// permits counts the obligations that hold a permit to be drained: it was granted to them, or they carry the drain
// label.
type permits struct {
	// inTime counts all of them, except late drains.
	inTime int
	// wanted are the permits that obligations wait for.
	wanted sets.Set[Cause]
	// turn is the permit that became free last, so that the next one is of another shard or resource.
	turn Cause
	// owners are the resources of objects that others may follow.
	owners sets.Set[schema.GroupResource]
}

// held counts the permits of a resource at a shard: a shard may have a controller for one resource, and none for
// another.
type held struct {
	inTime, late int
	// silent counts the drains that have become late since the shard last acknowledged one; since is when the first of
	// these began.
	silent int
	since  time.Time
}

// deaf reports whether the shard acknowledges no drains of the resource.
func (h *held) deaf() bool { return h.silent >= tooSilent }

// comparePermits orders causes of the kind [PermitOf].
func comparePermits(a, b Cause) int {
	return cmp.Or(
		cmp.Compare(a.shard, b.shard), cmp.Compare(a.of.Resource, b.of.Resource), cmp.Compare(a.of.Group, b.of.Group),
	)
}

// count adds n drains or grants of a resource at a shard; n is 1 or -1.
func (t *Table) count(l *lane, shard string, late bool, n int) {
	h := l.held[shard]
	if h == nil {
		h = &held{}
		l.held[shard] = h
	}

	if late {
		h.late += n
	} else {
		h.inTime += n
		t.permits.inTime += n
	}

	if h.inTime+h.late == 0 {
		delete(l.held, shard)
	}
}

// Owners sets the resources of objects that others may follow; nil for none.
func (t *Table) Owners(now time.Time, of sets.Set[schema.GroupResource]) {
	defer t.check()

	t.permits.owners = of
	t.grantNext(now)
}

// plan records that the planned move of an obligation begins. It counts from the moment at which the object may be
// drained, until the object is in its place.
func (t *Table) plan(now time.Time, e *entry) {
	t.unplan(e)
	e.lane.planned++
	t.set(&e.planned, now.Add(moveCounts), func(now time.Time) {
		e.lane.planned--
		t.grantNext(now)
	})
}

// unplan records that an obligation is in no planned move that counts.
func (t *Table) unplan(e *entry) {
	if t.stop(&e.planned) {
		e.lane.planned--
	}
}

// free reports whether one more object of a resource may be drained at a shard. A late drain costs its shard one
// permit, and all late drains of a shard together cost at most three quarters of its permits: nobody knows whether the
// shard works on these objects. A resource of which the shard acknowledges nothing gets one permit at a time, until
// that drain is late too, and holds none of the shard's for late drains: there is no controller for the resource, or it
// does not work, and others are not affected.
func (t *Table) free(permit Cause) bool {
	if t.paused.isSet() || t.moving(permit.of) {
		return false
	}

	inTime, late := 0, 0

	for _, l := range t.lanes.all {
		h := l.held[permit.shard]
		if h == nil {
			continue
		}

		inTime += h.inTime

		switch {
		case !h.deaf():
			late += h.late
		case l.of == permit.of && h.inTime > 0:
			return false
		}
	}

	most := max(t.limits.PerShard-late, (t.limits.PerShard+3)/4) //nolint:mnd // a quarter, rounded up

	return inTime < most && t.permits.inTime < t.limits.Drains
}

// moving reports whether as many planned moves run of owners, or of other objects, as may.
func (t *Table) moving(of schema.GroupResource) bool {
	owners, moves, most := t.permits.owners, 0, movesAtOnce
	if owners.Has(of) {
		most = ownersAtOnce
	}

	for _, l := range t.lanes.all {
		if owners.Has(l.of) == owners.Has(of) {
			moves += l.planned
		}
	}

	return moves >= most
}

// permit ensures that an object which no worker has holds a permit exactly while it carries the drain label.
func (t *Table) permit(now time.Time, e *entry) {
	shard := ""
	if e.object.Draining {
		shard = cmp.Or(e.object.Shard, e.holds)
	}

	if e.holds != shard {
		t.hold(now, e, shard)
		t.grantNext(now)
	}
}

// hold gives an obligation a permit of the shard; "" takes its permit away.
func (t *Table) hold(now time.Time, e *entry, shard string) {
	if e.holds == shard {
		return
	}

	if e.holds != "" {
		if e.object.Shard != e.holds {
			e.lane.held[e.holds].silent = 0 // the shard has released it
		}

		t.count(e.lane, e.holds, e.late, -1)
	}

	switch {
	case e.holds == "":
		t.plan(now, e)
	case shard == "" && e.object.Shard == e.holds: // it was not drained after all
		t.unplan(e)
	}

	e.late, e.since = false, now

	if e.holds = shard; shard != "" {
		t.count(e.lane, shard, false, 1)
	}
}

// grantNext wakes as many obligations as there are free permits, shards and resources in turn. They hold their permits
// from now on.
func (t *Table) grantNext(now time.Time) {
	if t.permits.wanted.Len() == 0 || t.permits.inTime >= t.limits.Drains {
		return
	}

	permits := slices.DeleteFunc(t.permits.wanted.UnsortedList(), func(c Cause) bool { return !t.free(c) })
	slices.SortFunc(permits, comparePermits)

	next, found := slices.BinarySearchFunc(permits, t.permits.turn, comparePermits)
	if found {
		next++
	}

	permits = slices.Concat(permits[next:], permits[:next])

	for some := true; some; {
		some = false

		for _, c := range permits {
			if w := t.parked[c]; w != nil && t.free(c) {
				e := w.first()
				t.permits.turn, some = c, true
				t.hold(now, e, c.shard)
				t.move(e, Due)
			}
		}
	}
}

// Silent is a shard that acknowledges no drains of a resource.
type Silent struct {
	Shard    string
	Resource schema.GroupResource
	// Objects is the number of its objects with late drains, and Since is when the first of these drains began that the
	// shard has not acknowledged since it last acknowledged one.
	Objects int
	Since   time.Time
}

// silent returns the shards that acknowledge no drains of a resource, those with the most objects first.
func (t *Table) silent() (all []Silent) {
	for _, l := range t.lanes.all {
		for shard, h := range l.held {
			if h.deaf() {
				all = append(all, Silent{Shard: shard, Resource: l.of, Objects: h.late, Since: h.since})
			}
		}
	}

	slices.SortFunc(all, func(a, b Silent) int {
		return cmp.Or(
			cmp.Compare(b.Objects, a.Objects),
			comparePermits(PermitOf(a.Shard, a.Resource), PermitOf(b.Shard, b.Resource)),
		)
	})

	return all
}
