package engine

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/services/internal/invariants"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// state is the shared state of the goroutines of an engine. All methods are safe for concurrent use.
//
// Invariants while the lock is free:
//
//  1. If a resource is verified, no pass has to look for misplaced objects of it.
//  2. The table is checked at every time that it has requested.
type state struct {
	clock clock.WithTickerAndDelayedExecution

	mu     sync.Mutex
	target *Target
	table  *work.Table
	passes passes
	grace  grace
	// relist requests a list of all objects without an available shard. lost are the shards that were lost since the last
	// one.
	relist bool
	lost   sets.Set[string]
	// ancestors know which objects can be followed.
	ancestors *resources.Book
	// failures are the sources that cannot be read, with the reason. unlisted are the sources that have not completed
	// their list yet, and whether it is their first one.
	failures map[sourceID]string
	unlisted map[sourceID]bool

	due, room *sync.Cond
	// alarm makes the table expire at the time armed; zero if at none.
	armed time.Time
	alarm clock.Timer
	// news wakes the reporter, poke wakes the passes, and seeks wakes the sources.
	news, poke, seeks chan struct{}
}

func newState(c Config, ancestors *resources.Book) *state {
	s := &state{
		clock: c.Clock,
		table: work.New(work.Limits{
			Workers: c.Limits.Workers, Drains: c.Limits.Total, PerShard: c.Limits.PerShard, DrainTimeout: c.Limits.DrainTimeout,
			Active: maxActive, Parked: maxParked,
		}),
		passes:    newPasses(c.Ring, c.Limits),
		lost:      sets.New[string](),
		ancestors: ancestors,
		failures:  map[sourceID]string{},
		unlisted:  map[sourceID]bool{},
		news:      make(chan struct{}, 1),
		poke:      make(chan struct{}, 1),
		seeks:     make(chan struct{}, 1),
	}
	s.due, s.room = sync.NewCond(&s.mu), sync.NewCond(&s.mu)

	return s
}

// notify sends on a channel that buffers one notification.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// update changes the state under the lock, and triggers what follows from the change.
func (s *state) update(change func(now time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()

	change(s.clock.Now())
	s.changed()
}

// changed triggers what follows from a change of the table. The lock must be held.
func (s *state) changed() {
	if d, ok := s.table.Debt(); ok {
		s.passes.owe(d)
		s.relist = s.relist || d.Relist
		notify(s.seeks)
	}

	if s.table.Due() {
		s.due.Signal()
	}

	s.room.Broadcast()

	if at, ok := s.table.Next(); ok && (s.armed.IsZero() || at.Before(s.armed)) {
		if s.armed = at; s.alarm != nil {
			s.alarm.Stop()
		}

		s.alarm = s.clock.AfterFunc(at.Sub(s.clock.Now()), func() { go s.expire() }) // fake clocks call it with their lock
	}

	notify(s.news)
	notify(s.poke)

	if s.table.News() {
		notify(s.seeks)
	}

	if invariants.Enabled {
		s.check()
	}
}

// expire wakes obligations whose time has come.
func (s *state) expire() {
	s.update(func(now time.Time) {
		s.armed = time.Time{}
		s.table.Expire(now)
	})
}

// sleep waits until a time, or until it is woken, or until ctx ends. If the time is zero, it does not come. sleep
// reports whether it has come.
func (s *state) sleep(ctx context.Context, until time.Time, woken <-chan struct{}) bool {
	var passed <-chan time.Time

	if !until.IsZero() {
		timer := s.clock.NewTimer(until.Sub(s.clock.Now()))
		defer timer.Stop()

		passed = timer.C()
	}

	select {
	case <-ctx.Done():
	case <-woken:
	case <-passed:
		return true
	}

	return false
}

// await blocks until the condition holds. The condition is evaluated with the lock held, after every change. It returns
// false if ctx ended first.
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

// take returns what is due, and the target that it is about; false if nothing is due anymore.
func (s *state) take() (t *Target, job work.Job, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	now := s.clock.Now()

	job, ok = s.table.Take(now)
	if job.Grace = s.grace.wait(now); ok && job.Grace > 0 {
		job.GraceReason = fmt.Sprintf("%d of %d shards have come back; others may follow within %s",
			len(s.target.View.AvailableShards()), s.grace.known, comeback)
	}

	return s.target, job, ok
}

// knows reports whether an object is an obligation.
func (s *state) knows(id feed.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	_, known := s.table.Has(id)

	return known
}

// free records that a shard does not work on its objects.
func (s *state) free(shard string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.table.Waits(work.HeldBy(shard)) {
		s.table.Wake(work.HeldBy(shard))
		s.changed()
	}
}

// report records the outcome of a job.
func (s *state) report(id feed.ID, out work.Outcome) (late work.Late, news bool) {
	s.update(func(now time.Time) { late, news = s.table.Report(now, id, out) })

	return late, news
}

// sight is an object that was seen.
type sight struct {
	object feed.Object
	// inPlace reports whether it was in its place. watched reports whether its source also reports the removal of its
	// drain label.
	inPlace, watched bool
	// room reports whether there is room for the object. It is called with the lock held. If it is nil, the default check
	// applies.
	room func() bool
	// held holds the object back if it is out of place; nil holds nothing back.
	held *holding
}

// saw records a sight that was assessed for the given target. It reports whether that is still the current target.
func (s *state) saw(t *Target, o sight) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.target != t {
		return false
	}

	if r, _, ok := t.Set.Find(o.object.GVR.GroupResource()); ok && r.GVR != o.object.GVR {
		return true // the source of this version ends, and that of the version which is served now lists all
	}

	_, known := s.table.Has(o.object.ID)

	if now := s.clock.Now(); o.inPlace || o.watched {
		s.table.See(now, o.object, o.inPlace)
	} else {
		s.table.Find(now, o.object)
	}

	if known || !o.inPlace { // otherwise, only a family may have waited for it
		s.changed()
	}

	return true
}

// Target returns the current target; nil if there is none yet.
func (s *state) Target() *Target {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.target
}

// retarget sets the target, and reports whether it differs from the previous one in any way.
func (s *state) retarget(t *Target) (differs bool) {
	if old := s.Target(); old.Same(t) && old.Narrow.Equal(t.Narrow) {
		return false // no notification: its receiver sets the target
	}

	t.View.Table() // built here, because for a thousand shards it takes so long that nobody should wait for it at the lock

	s.update(func(now time.Time) {
		old := s.target
		s.target = t
		s.unlisted[newTarget] = true // until the sources follow it

		if old.Same(t) {
			return // the same objects, only watched differently
		}

		lost := lostShards(old, t)
		s.lost = s.lost.Union(lost)
		// The ring may now include objects that it did not include before.
		s.relist = s.relist || lost.Len() > 0 || old != nil && !old.Covers(t)
		s.passes.retarget(now, old, t)
		s.grace.retarget(now, len(t.View.AvailableShards()), len(t.View.Shards()), lostShards(t, old).Len() > 0)
		maps.DeleteFunc(s.failures, func(id sourceID, _ string) bool { // the next pass shows whether they persist
			return id.looksFor == forMisplaced
		})

		owners := sets.New[schema.GroupResource]()

		for _, r := range t.Set.Main() {
			if r.Controls {
				owners.Insert(r.GroupResource())
			}
		}

		s.table.Owners(now, owners)
		s.table.Recheck(now, t.View.Works, func(id feed.ID) bool {
			r, _, ok := t.Set.Find(id.GVR.GroupResource())
			return ok && r.GVR == id.GVR && r.Namespaced == (id.Namespace != "")
		})
		s.table.Controlled(now, t.Set.Controlled(), t.View.Stops() && s.hasFew())
	})

	return true
}

// followed records that the sources follow a target.
func (s *state) followed(t *Target) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.unlisted[newTarget] && (s.target == t || s.target.Same(t)) {
		delete(s.unlisted, newTarget)
		s.changed()
		notify(s.seeks)
	}
}

// lostShards returns the shards that were available before and are not available after, and those that worked before
// and do not work after; none if either target is nil.
func lostShards(before, after *Target) sets.Set[string] {
	lost := sets.New[string]()

	if before != nil && after != nil {
		for _, name := range before.View.WorkingShards() {
			if before.View.Available(name) && !after.View.Available(name) || !after.View.Works(name) {
				lost.Insert(name)
			}
		}
	}

	return lost
}

// listing records that a source has objects that it has not reported yet.
func (s *state) listing(id sourceID, first bool) {
	s.update(func(time.Time) { s.unlisted[id] = first })
}

// listed records that a source has reported all objects.
func (s *state) listed(id sourceID) {
	s.update(func(time.Time) { delete(s.unlisted, id) })
	notify(s.seeks)
}

// forget drops a source that no longer exists.
func (s *state) forget(id sourceID) {
	s.update(func(time.Time) {
		delete(s.failures, id)
		delete(s.unlisted, id)

		if id.looksFor == forFollowers {
			s.table.Unwatch(placeOf(id))
		}
	})
}

// comeback is how long a ring waits for more of its shards after one has come back: about as long as a process takes to
// start and to acquire its Lease.
const comeback = 15 * time.Second

// longestComeback limits the wait if shards come back one after another, and leave again: objects of lost shards must
// not wait for as long as that lasts.
const longestComeback = 4 * comeback

// grace prevents the first shard that comes back after a disruption from getting all objects. The objects of lost
// shards wait for a while if fewer than half of the shards are available that were available when the ring last
// converged, and one has just come back. Otherwise, these objects would move to the few available shards, and back
// again when the other shards follow. Objects without a shard do not wait. Objects of shards that leave do not wait
// either while no shard comes back.
type grace struct {
	// known is the number of shards that were available when the ring last converged. Before the first convergence, it is
	// the initial number of Leases, no matter who holds them.
	known int
	// until is the end of the wait; zero if objects do not wait. began is when the first shard came back, and last when
	// the last one did.
	until, began, last time.Time
}

// retarget records another set of available shards. joined reports whether a shard has joined, and leases is the number
// of Leases.
func (g *grace) retarget(now time.Time, available, leases int, joined bool) {
	if g.known == 0 {
		g.known = leases
	}

	switch {
	case 2*available >= g.known:
		*g = grace{known: g.known}
	case joined:
		if now.Sub(g.last) > longestComeback {
			g.began = now
		}

		g.last = now
		g.until = now.Add(min(comeback, g.began.Add(longestComeback).Sub(now)))
	}
}

// wait returns how long objects of lost shards have to wait; zero or negative if they do not have to.
func (g *grace) wait(now time.Time) time.Duration { return g.until.Sub(now) }

// check panics if an invariant of the engine does not hold. The lock must be held.
func (s *state) check() {
	for _, l := range s.passes.looks {
		if l.verified && l.owed {
			invariants.Violated("1: %s is verified, but a pass has to look for misplaced objects", l.resource.GroupResource())
		}
	}

	if at, ok := s.table.Next(); ok && (s.armed.IsZero() || s.armed.After(at)) {
		invariants.Violated("2: an obligation is due at %s, but the table is checked at %s", at, s.armed)
	}
}
