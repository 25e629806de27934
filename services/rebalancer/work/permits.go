package work

import (
	"cmp"
	"container/list"
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

// shardLane is a resource at a shard: a shard may have a controller for one resource, and none for another.
type shardLane struct {
	shard string
	of    schema.GroupResource
}

func laneOf(shard string, e *entry) shardLane { return shardLane{shard, e.object.GVR.GroupResource()} }

func compareLanes(a, b shardLane) int {
	return cmp.Or(
		cmp.Compare(a.shard, b.shard), cmp.Compare(a.of.Resource, b.of.Resource), cmp.Compare(a.of.Group, b.of.Group),
	)
}

// permits counts the obligations that hold a permit to be drained: it was granted to them, or they carry the drain
// label.
type permits struct {
	// inTime counts all of them, except late drains.
	inTime int
	// lanes counts them by shard and resource. There is no entry without any.
	lanes map[string]map[schema.GroupResource]*held
	// wanted are the lanes with obligations that wait for a permit.
	wanted sets.Set[shardLane]
	// turn is the lane that got the last free permit, so that the next one goes to another lane.
	turn shardLane
	// planned are the obligations in planned moves that count, in the order of their beginnings: those of owners, and
	// others. A move runs from the moment at which the object may be drained, until the object is in its place.
	planned [2]list.List
	// owners are the resources of objects that others may follow.
	owners sets.Set[schema.GroupResource]
}

// held counts the permits of a lane.
type held struct {
	inTime, late int
	// silent counts the drains that have become late since the shard last acknowledged one; since is when the first of
	// these began.
	silent int
	since  time.Time
}

func newPermits() permits {
	return permits{
		lanes: map[string]map[schema.GroupResource]*held{}, wanted: sets.New[shardLane](),
	}
}

// count adds n drains or grants of a lane; n is 1 or -1.
func (s *permits) count(l shardLane, late bool, n int) {
	if s.lanes[l.shard] == nil {
		s.lanes[l.shard] = map[schema.GroupResource]*held{}
	}

	h := s.lanes[l.shard][l.of]
	if h == nil {
		h = &held{}
		s.lanes[l.shard][l.of] = h
	}

	if late {
		h.late += n
	} else {
		h.inTime += n
		s.inTime += n
	}

	if h.inTime+h.late == 0 {
		delete(s.lanes[l.shard], l.of)
	}

	if len(s.lanes[l.shard]) == 0 {
		delete(s.lanes, l.shard)
	}
}

// late records that a drain in time has become late.
func (s *permits) late(l shardLane, since time.Time) {
	s.count(l, true, 1) // first, so that the lane is not forgotten
	s.count(l, false, -1)

	h := s.lanes[l.shard][l.of]
	if h.silent++; h.silent == 1 {
		h.since = since
	}
}

// deaf reports whether the shard acknowledges no drains of the resource.
func (s *permits) deaf(l shardLane) bool {
	h := s.lanes[l.shard][l.of]

	return h != nil && h.silent >= tooSilent
}

// acknowledged records that a shard has released an object.
func (s *permits) acknowledged(l shardLane) {
	if h := s.lanes[l.shard][l.of]; h != nil {
		h.silent = 0
	}
}

// Owners sets the resources of objects that others may follow; nil for none.
func (t *Table) Owners(now time.Time, of sets.Set[schema.GroupResource]) {
	defer t.check()

	t.permits.owners = of
	t.grantNext(now)
}

// class returns the index of the planned moves of a resource, and how many of them run at a time.
func (s *permits) class(of schema.GroupResource) (class, most int) {
	if s.owners.Has(of) {
		return 0, ownersAtOnce
	}

	return 1, movesAtOnce
}

// begin records that the planned move of an obligation begins.
func (s *permits) begin(now time.Time, e *entry) {
	class, _ := s.class(e.lane.of)
	s.leave(e)
	e.planned, e.began = s.planned[class].PushBack(e), now
}

// leave records that an obligation is in no planned move that counts.
func (s *permits) leave(e *entry) {
	if e.planned != nil {
		s.planned[0].Remove(e.planned) // only the list that contains it removes it
		s.planned[1].Remove(e.planned)
		e.planned = nil
	}
}

// next returns the planned move that no longer counts first, and when; ok is false if none counts.
func (s *permits) next() (first *entry, at time.Time, ok bool) {
	for i := range s.planned {
		if front := s.planned[i].Front(); front != nil {
			e := front.Value.(*entry) //nolint:forcetypeassert // begin adds nothing else
			if ends := e.began.Add(moveCounts); !ok || ends.Before(at) {
				first, at, ok = e, ends, true
			}
		}
	}

	return first, at, ok
}

// free reports whether one more object of a lane may be drained. A late drain costs its shard one permit, and all late
// drains of a shard together cost at most three quarters of its permits: nobody knows whether the shard works on these
// objects. A lane that acknowledges nothing gets one permit at a time, until that drain is late too, and holds none of
// the shard's for late drains: there is no controller for the resource, or it does not work, and others are not
// affected.
func (t *Table) free(l shardLane) bool {
	p := &t.permits
	inTime, late := 0, 0

	for of, h := range p.lanes[l.shard] {
		inTime += h.inTime

		switch {
		case h.silent < tooSilent:
			late += h.late
		case of == l.of && h.inTime > 0:
			return false
		}
	}

	most := max(t.limits.PerShard-late, (t.limits.PerShard+3)/4) //nolint:mnd // a quarter, rounded up
	class, moves := p.class(l.of)

	return t.paused.IsZero() && inTime < most && p.inTime < t.limits.Drains && p.planned[class].Len() < moves
}

// pause lets no further object be drained until a time; the zero time ends that. Objects that are drained already are
// not affected.
func (t *Table) pause(now, until time.Time) {
	if t.paused = until; until.IsZero() {
		t.grantNext(now)
	}
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
}

// hold gives an obligation a permit of the shard; "" takes its permit away.
func (t *Table) hold(now time.Time, e *entry, shard string) {
	if e.holds == shard {
		return
	}

	if l := laneOf(e.holds, e); e.holds != "" {
		if e.object.Shard != e.holds {
			t.permits.acknowledged(l)
		}

		t.permits.count(l, e.late, -1)
	}

	switch {
	case e.holds == "":
		t.permits.begin(now, e)
	case shard == "" && e.object.Shard == e.holds: // it was not drained after all
		t.permits.leave(e)
	}

	e.late, e.since = false, now

	if e.holds = shard; shard != "" {
		t.permits.count(laneOf(shard, e), false, 1)
	}
}

// grantNext wakes as many obligations as there are free permits, the lanes in turn. They hold their permits from now
// on.
func (t *Table) grantNext(now time.Time) {
	if t.permits.wanted.Len() == 0 {
		return
	}

	lanes := slices.DeleteFunc(t.permits.wanted.UnsortedList(), func(l shardLane) bool { return !t.free(l) })
	slices.SortFunc(lanes, compareLanes)

	next, found := slices.BinarySearchFunc(lanes, t.permits.turn, compareLanes)
	if found {
		next++
	}

	lanes = slices.Concat(lanes[next:], lanes[:next])

	for some := true; some; {
		some = false

		for _, l := range lanes {
			if w := t.parked[PermitOf(l.shard, l.of)]; w != nil && t.free(l) {
				e := w.first()
				t.permits.turn, some = l, true
				t.hold(now, e, l.shard)
				t.move(e, Woken)
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
func (s *permits) silent() (all []Silent) {
	for shard, lanes := range s.lanes {
		for of, h := range lanes {
			if h.silent >= tooSilent {
				all = append(all, Silent{Shard: shard, Resource: of, Objects: h.late, Since: h.since})
			}
		}
	}

	slices.SortFunc(all, func(a, b Silent) int {
		return cmp.Or(
			cmp.Compare(b.Objects, a.Objects),
			compareLanes(shardLane{a.Shard, a.Resource}, shardLane{b.Shard, b.Resource}),
		)
	})

	return all
}
