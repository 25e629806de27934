package engine

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/internal/invariants"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// notify sends on a channel that buffers one notification.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// update changes the state under the lock, and triggers what follows from the change.
func (e *Engine) update(change func(now time.Time)) {
	e.mu.Lock()
	defer e.mu.Unlock()

	change(e.Clock.Now())
	e.changed()
}

// changed triggers what follows from a change of the table. The lock must be held.
func (e *Engine) changed() {
	if d, ok := e.table.Debt(); ok {
		e.passes.owe(d)
		e.relist = e.relist || d.Relist
		notify(e.seeks)
	}

	if e.table.Due() {
		e.due.Signal()
	}

	e.room.Broadcast()

	if at, ok := e.table.Next(); ok && e.running && (e.armed.IsZero() || at.Before(e.armed)) {
		if e.armed = at; e.alarm != nil {
			e.alarm.Stop()
		}

		e.alarm = e.Clock.AfterFunc(at.Sub(e.Clock.Now()), func() { go e.expire() }) // fake clocks call it with their lock
	}

	notify(e.news)
	notify(e.poke)

	if e.table.News() {
		notify(e.seeks)
	}

	if invariants.Enabled {
		e.check()
	}
}

// expire wakes obligations whose time has come.
func (e *Engine) expire() {
	e.update(func(now time.Time) {
		e.armed = time.Time{}
		e.table.Expire(now)
	})
}

// silence stops the alarm, so that nothing refers to an engine that has ended.
func (e *Engine) silence() {
	e.mu.Lock()
	defer e.mu.Unlock()

	if e.running = false; e.alarm != nil {
		e.alarm.Stop()
	}
}

// sleep waits until a time, or until it is woken, or until ctx ends. If the time is zero, it does not come.
func (e *Engine) sleep(ctx context.Context, until time.Time, woken <-chan struct{}) {
	var passed <-chan time.Time

	if !until.IsZero() {
		timer := e.Clock.NewTimer(until.Sub(e.Clock.Now()))
		defer timer.Stop()

		passed = timer.C()
	}

	select {
	case <-ctx.Done():
	case <-woken:
	case <-passed:
	}
}

// await blocks until the condition holds. The condition is evaluated with the lock held, after every change. It returns
// false if ctx ended first.
func (e *Engine) await(ctx context.Context, on *sync.Cond, condition func() bool) bool {
	stop := context.AfterFunc(ctx, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		on.Broadcast()
	})
	defer stop()

	e.mu.Lock()
	defer e.mu.Unlock()

	for !condition() {
		if ctx.Err() != nil {
			return false
		}

		on.Wait()
	}

	return ctx.Err() == nil
}

// take returns what is due, and the target that it is about; false if nothing is due anymore.
func (e *Engine) take() (t *Target, job work.Job, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()

	now := e.Clock.Now()

	job, ok = e.table.Take(now)
	if job.Grace = e.grace.wait(now); ok && job.Grace > 0 {
		job.GraceReason = fmt.Sprintf("%d of %d shards have come back; others may follow within %s",
			len(e.target.View.AvailableShards()), e.grace.known, comeback)
	}

	return e.target, job, ok
}

// knows reports whether an object is an obligation.
func (e *Engine) knows(id feed.ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()

	_, known := e.table.Has(id)

	return known
}

// free records that a shard does not work on its objects.
func (e *Engine) free(shard string) {
	e.mu.Lock()
	defer e.mu.Unlock()

	if e.table.Waits(work.HeldBy(shard)) {
		e.table.Wake(work.HeldBy(shard))
		e.changed()
	}
}

// report records the outcome of a job.
func (e *Engine) report(id feed.ID, out work.Outcome) (late work.Late, news bool) {
	e.update(func(now time.Time) { late, news = e.table.Report(now, id, out) })

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
func (e *Engine) saw(t *Target, o sight) bool {
	e.mu.Lock()
	defer e.mu.Unlock()

	if e.target != t {
		return false
	}

	if r, _, ok := t.Set.Find(o.object.GVR.GroupResource()); ok && r.GVR != o.object.GVR {
		return true // the source of this version ends, and that of the version which is served now lists all
	}

	_, known := e.table.Has(o.object.ID)

	if now := e.Clock.Now(); o.inPlace || o.watched {
		e.table.See(now, o.object, o.inPlace)
	} else {
		e.table.Find(now, o.object)
	}

	if known || !o.inPlace { // otherwise, only a family may have waited for it
		e.changed()
	}

	return true
}

// Target returns the current target; nil if there is none yet.
func (e *Engine) Target() *Target {
	e.mu.Lock()
	defer e.mu.Unlock()

	return e.target
}

// retarget sets the target, and reports whether it differs from the previous one in any way.
func (e *Engine) retarget(t *Target) (differs bool) {
	if old := e.Target(); old.Same(t) && old.Narrow.Equal(t.Narrow) {
		return false // no notification: its receiver sets the target
	}

	t.View.Table() // built here, because for a thousand shards it takes so long that nobody should wait for it at the lock

	e.update(func(now time.Time) {
		old := e.target
		e.target = t
		e.unlisted[newTarget] = true // until the sources follow it

		if old.Same(t) {
			return // the same objects, only watched differently
		}

		lost := lostShards(old, t)
		e.lost = e.lost.Union(lost)
		// The ring may now include objects that it did not include before.
		e.relist = e.relist || lost.Len() > 0 || old != nil && !old.Covers(t)
		e.passes.retarget(now, old, t)
		e.grace.retarget(now, len(t.View.AvailableShards()), len(t.View.Shards()), lostShards(t, old).Len() > 0)
		maps.DeleteFunc(e.failures, func(id sourceID, _ string) bool { // the next pass shows whether they persist
			return id.looksFor == forMisplaced
		})

		owners := sets.New[schema.GroupResource]()

		for _, r := range t.Set.Main() {
			if r.Controls {
				owners.Insert(r.GroupResource())
			}
		}

		e.table.Owners(now, owners)
		e.table.Recheck(now, t.View.Works, func(id feed.ID) bool {
			r, _, ok := t.Set.Find(id.GVR.GroupResource())
			return ok && r.GVR == id.GVR && r.Namespaced == (id.Namespace != "")
		})
		e.table.Controlled(now, t.Set.Controlled(), t.View.Stops() && e.hasFew())
	})

	return true
}

// followed records that the sources follow a target.
func (e *Engine) followed(t *Target) {
	e.mu.Lock()
	defer e.mu.Unlock()

	if e.unlisted[newTarget] && (e.target == t || e.target.Same(t)) {
		delete(e.unlisted, newTarget)
		e.changed()
		notify(e.seeks)
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
func (e *Engine) listing(id sourceID, first bool) {
	e.update(func(time.Time) { e.unlisted[id] = first })
}

// listed records that a source has reported all objects.
func (e *Engine) listed(id sourceID) {
	e.update(func(time.Time) { delete(e.unlisted, id) })
	notify(e.seeks)
}

// forget drops a source that no longer exists.
func (e *Engine) forget(id sourceID) {
	e.update(func(time.Time) {
		delete(e.failures, id)
		delete(e.unlisted, id)

		if id.looksFor == forFollowers {
			e.table.Unwatch(placeOf(id))
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
func (e *Engine) check() {
	for _, l := range e.passes.looks {
		if l.verified && l.owed {
			invariants.Violated("1: %s is verified, but a pass has to look for misplaced objects", l.resource.GroupResource())
		}
	}

	if at, ok := e.table.Next(); ok && e.running && (e.armed.IsZero() || e.armed.After(at)) {
		invariants.Violated("2: an obligation is due at %s, but the table is checked at %s", at, e.armed)
	}
}
