package engine

import (
	"context"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/services/internal/ancestry"
	"github.com/clusterring/clusterring/services/internal/invariants"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
	"github.com/clusterring/clusterring/services/rebalancer/obligation"
)

// state is what the goroutines of an engine share. Every method may be called by any of them.
//
// Invariants, whenever nobody has the lock:
//
//  1. Everything was seen in its place only if no pass has to look for what is not.
//  2. What the table wants to be looked at at some time is looked at then.
//  3. A family has one name and one UID, by which it is known. No more members are kept than the bound allows.
type state struct {
	clock clock.WithTicker
	pace  invariants.Pace

	mu     sync.Mutex
	target *Target
	table  *obligation.Table
	passes passes
	grace  grace
	// lost are shards whose objects have to be listed, until somebody does; relist asks for all without an available shard.
	lost   sets.Set[string]
	relist bool
	// history is what is known of the past of shards that were lost.
	history history
	// families are the objects that go after those that follow them; ancestors know who may be followed.
	families  families
	ancestors *ancestry.Book
	// failures are the sources that cannot be read, with the reason; unlisted those that have not listed yet.
	failures map[sourceID]string
	unlisted sets.Set[sourceID]

	due, room *sync.Cond
	// armed is when tick looks at the table next; zero if never.
	armed time.Time
	timer chan struct{}
	// news wakes whoever reports, poke whoever passes over all objects, owed whoever lists, gather whoever looks for what follows others.
	news, poke, owed, gather chan struct{}
}

func newState(c Config, ancestors *ancestry.Book) *state {
	s := &state{
		clock: c.Clock,
		table: obligation.New(obligation.Limits{
			Drains: c.Limits.Total, PerShard: c.Limits.PerShard, DrainTimeout: c.Limits.DrainTimeout,
			Active: maxActive, Parked: maxParked,
		}),
		passes:   newPasses(c.Ring, c.Limits),
		lost:     sets.New[string](),
		history:  newHistory(),
		families: newFamilies(), ancestors: ancestors,
		failures: map[sourceID]string{},
		unlisted: sets.New[sourceID](),
		timer:    make(chan struct{}, 1), news: make(chan struct{}, 1), poke: make(chan struct{}, 1), owed: make(chan struct{}, 1),
		gather: make(chan struct{}, 1),
	}
	s.due, s.room = sync.NewCond(&s.mu), sync.NewCond(&s.mu)

	return s
}

// notify wakes whoever waits on a channel of one notice.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// update changes the state under the lock, and wakes who waits for what follows.
func (s *state) update(change func(now time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()

	change(s.clock.Now())
	s.changed()
}

// changed does what follows from a change of the table, with the lock held.
func (s *state) changed() {
	if d, ok := s.table.Debt(); ok {
		s.passes.owe(d)
		s.lost.Insert(d.Lost...)
		s.relist = s.relist || d.Relist
		notify(s.owed)
	}

	if s.table.Ready() > 0 {
		s.due.Signal()
	}

	s.room.Broadcast()

	if at, ok := s.table.Next(); ok && (s.armed.IsZero() || at.Before(s.armed)) {
		s.armed = at
		notify(s.timer)
	}

	notify(s.news)
	notify(s.poke)

	if invariants.Enabled {
		s.check()
	}
}

// tick wakes what the table was asked to wake at some time.
func (s *state) tick(ctx context.Context) {
	for {
		s.mu.Lock()
		at := s.armed
		s.mu.Unlock()

		var passed <-chan time.Time

		stop := func() bool { return false }

		if !at.IsZero() {
			timer := s.clock.NewTimer(at.Sub(s.clock.Now()))
			passed = timer.C()
			stop = timer.Stop
		}

		select {
		case <-ctx.Done():
			stop()
			return
		case <-s.timer:
		case <-passed:
			s.update(func(now time.Time) {
				s.armed = time.Time{}
				s.table.Expire(now)
			})
		}

		stop()
	}
}

// await blocks until the condition holds, which is asked with the lock held after every change; false if ctx ended first.
func (s *state) await(ctx context.Context, on *sync.Cond, condition func() bool) bool {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		on.Broadcast()
	})
	defer stop()

	s.mu.Lock()
	defer s.mu.Unlock()

	for !condition() {
		if ctx.Err() != nil {
			return false
		}

		on.Wait()
	}

	return ctx.Err() == nil
}

// next returns what is due; false if ctx ended.
func (s *state) next(ctx context.Context) (job obligation.Job, ok bool) {
	return job, s.await(ctx, s.due, func() bool {
		var taken bool
		if job, taken = s.table.Take(s.clock.Now()); taken && s.table.Ready() > 0 {
			s.due.Signal()
		}

		return taken
	})
}

// report takes note of what became of a job.
func (s *state) report(id objects.ID, out obligation.Outcome) (late obligation.Late, news bool) {
	s.update(func(now time.Time) {
		if late, news = s.table.Report(now, id, out); out.Object != nil {
			s.history.note(id.GVR, out.Object.ResourceVersion)
			s.follows(*out.Object)
		}

		s.ended(id)
	})

	return late, news
}

// queued reports whether there is more to do than workers are doing.
func (s *state) queued() bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.table.Ready() > 0
}

func (s *state) again(id objects.ID) {
	s.update(func(time.Time) { s.table.Again(id) })
}

// sight is an object that was seen.
type sight struct {
	object objects.Object
	// inPlace says that it was in its place; watched that whoever saw it is told when it loses its drain label.
	inPlace, watched bool
	// room reports whether there is room for it, with the lock held; nil if that is to be asked as for most.
	room func() bool
	// held keeps it back if it is out of place; nil keeps nothing back.
	held *holding
}

// saw takes note of a sight, as the given target has it. It reports whether that is the present one.
func (s *state) saw(t *Target, o sight) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.target != t {
		return false
	}

	if _, known := s.table.Has(o.object.ID); !known && o.inPlace {
		return true
	}

	s.see(o)

	return true
}

// see takes note of a sight, with the lock held.
func (s *state) see(o sight) {
	s.follows(o.object)

	before, known := s.table.Has(o.object.ID)
	s.table.See(s.clock.Now(), o.object, o.inPlace)
	s.ended(o.object.ID)

	if o.object.Draining && !o.watched && (!known || !before.Draining) {
		s.table.Doubt(o.object.ID)
	}

	s.changed()
}

// Target returns the present target; nil if there is none yet.
func (s *state) Target() *Target {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.target
}

// retarget sets the target, and reports whether it differs from the one before in any way.
func (s *state) retarget(t *Target) (differs bool) {
	if old := s.Target(); old.Same(t) && old.Narrow.Equal(t.Narrow) {
		return false // and nobody is told: who is told sets the target
	}

	s.update(func(now time.Time) {
		old := s.target
		s.target = t
		s.unlisted.Insert(newTarget) // until the sources follow it

		if old.Same(t) {
			return // it is about the same objects, watched otherwise
		}

		lost := lostShards(old, t)
		s.lost = s.lost.Union(lost)
		s.history.lose(lost)
		s.relist = s.relist || old != nil && !old.Covers(t) // what was nobody's concern may be ours now
		s.passes.retarget(now, extentOf(old, t))
		s.grace.retarget(now, len(t.View.AvailableShards()), len(t.View.Shards()), lostShards(t, old).Len() > 0)
		maps.DeleteFunc(s.failures, func(id sourceID, _ string) bool { // the next pass shows
			return id.looksFor == forMisplaced || id.looksFor == forFollowers
		})
		s.table.Recheck(now, t.View.Available, func(id objects.ID) bool {
			r, _, ok := t.Set.Find(id.GVR.GroupResource())
			return ok && r.GVR == id.GVR && r.Namespaced == (id.Namespace != "")
		})
	})

	return true
}

// looking reports whether some source has objects to tell of that it has not told yet; the lock is held.
func (s *state) looking() bool { return s.unlisted.Len() > 0 || s.lost.Len() > 0 || s.relist }

// followed notes that the sources follow a target.
func (s *state) followed(t *Target) {
	s.update(func(time.Time) {
		if s.target == t || s.target.Same(t) {
			s.unlisted.Delete(newTarget)
		}
	})
}

// lostShards returns the shards that were available before and are not after; none if either is not known.
func lostShards(before, after *Target) sets.Set[string] {
	lost := sets.New[string]()

	if before != nil && after != nil {
		for _, name := range before.View.AvailableShards() {
			if !after.View.Available(name) {
				lost.Insert(name)
			}
		}
	}

	return lost
}

// fail notes that a source cannot be read; a nil error that it can.
func (s *state) fail(id sourceID, err error) {
	s.update(func(time.Time) {
		if err != nil {
			s.failures[id] = err.Error()
		} else {
			delete(s.failures, id)
		}
	})
}

// listing notes that a source has objects to tell of that it has not told yet.
func (s *state) listing(id sourceID) {
	s.update(func(time.Time) { s.unlisted.Insert(id) })
}

// listed notes that a source has told of all.
func (s *state) listed(id sourceID) {
	s.update(func(time.Time) { s.unlisted.Delete(id) })
}

// forget forgets a source that is no more.
func (s *state) forget(id sourceID) {
	s.update(func(time.Time) {
		delete(s.failures, id)
		s.unlisted.Delete(id)
	})
}

// takeLost returns the shards whose objects have to be listed, and whether all without an available shard have to be.
func (s *state) takeLost() (shards []string, relist bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	shards, relist = sets.List(s.lost), s.relist
	s.lost, s.relist = sets.New[string](), false
	s.unlisted.Insert(beingAsked)

	return shards, relist
}

// unsure has an object looked at that came to a version which nobody has seen.
func (s *state) unsure(id objects.ID, resourceVersion string) {
	s.update(func(time.Time) {
		s.history.note(id.GVR, resourceVersion)
		s.table.Unsure(id, resourceVersion)
	})
}

// released takes note that an object has lost its drain label.
func (s *state) released(id objects.ID, resourceVersion string) {
	s.update(func(now time.Time) {
		s.history.note(id.GVR, resourceVersion)
		s.table.Released(now, id, resourceVersion)
	})
}

// drainsOf returns the drains of a resource that are under way, by the version in which they were seen last.
func (s *state) drainsOf(gvr schema.GroupVersionResource) map[objects.ID]string {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.table.Drains(func(id objects.ID) bool { return id.GVR == gvr })
}

// unlistedBut has objects looked at that have no available shard, as far as is known, and were not listed.
func (s *state) unlistedBut(of func(objects.ID) bool) {
	s.update(func(time.Time) { s.table.Unlisted(of) })
}
