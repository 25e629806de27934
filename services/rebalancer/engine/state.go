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
	"github.com/clusterring/clusterring/services/rebalancer/move"
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
		e.owe(d)
		e.relist = e.relist || d.Relist
		notify(e.seeks)
	}

	if e.table.Due() {
		e.due.Signal()
	}

	e.room.Broadcast()
	notify(e.news)
	notify(e.poke)

	if at, ok := e.table.Next(); ok && (e.armed.IsZero() || at.Before(e.armed)) {
		e.armed = at
		notify(e.ticks)
	}

	if e.table.News() {
		notify(e.seeks)
	}

	if invariants.Enabled {
		e.check()
	}
}

// expire wakes obligations whenever their time has come, until ctx ends.
func (e *Engine) expire(ctx context.Context) {
	for ctx.Err() == nil {
		e.mu.Lock()
		at, ok := e.table.Next()
		e.armed = at
		e.mu.Unlock()

		if ok && !at.After(e.Clock.Now()) {
			e.update(e.table.Expire)
		} else {
			e.sleep(ctx, at, e.ticks)
		}
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

	if job, ok = e.table.Take(now); e.table.News() { // it looks at the times of the table, too
		notify(e.seeks)
	}

	if job.Grace = e.grace.wait(now); ok && job.Grace > 0 {
		job.GraceReason = fmt.Sprintf("%d of %d shards have come back; others may follow within %s",
			len(e.target.View.AvailableShards()), e.grace.known, comeback)
	}

	return e.target, job, ok
}

// free records that a shard does not work on its objects.
func (e *Engine) free(shard string) {
	e.mu.Lock()
	defer e.mu.Unlock()

	if e.table.Waits(work.HeldBy(shard)) { // most moves find that nothing does
		e.table.Wake(work.HeldBy(shard))
		e.changed()
	}
}

// sight is an object that was seen.
type sight struct {
	object feed.Object
	// watched reports whether its source also reports the removal of its drain label. awaited reports whether it concerns
	// only an object that waits for it.
	watched, awaited bool
	// held holds the object back if it is out of place; nil holds nothing back.
	held *holding
	// audits is the resource of the audit that has seen it; nil if no audit has, or if objects may be out of place.
	audits *look
	// at is where it belongs; if err is set, this is not known, and nothing was recorded. missed reports whether only the
	// audit has found that it is not there.
	at     move.Assessment
	err    error
	missed bool
}

// concerns reports whether anything depends on a sight. The lock must be held.
func (e *Engine) concerns(o sight) bool { return !o.awaited || e.table.Awaited(o.object.Lineage()) }

// saw records a sight that was assessed for the given target. It reports whether that is still the current target.
func (e *Engine) saw(t *Target, o *sight) bool {
	e.mu.Lock()
	defer e.mu.Unlock()

	if e.target != t {
		return false
	}

	if r, _, ok := t.Set.Find(o.object.GVR.GroupResource()); !e.concerns(*o) || ok && r.GVR != o.object.GVR {
		return true // or the source of this version ends, and that of the version which is served now lists all
	}

	_, known := e.table.Has(o.object.ID)
	// A ring that changes and changes back may have misplaced objects, and so may what is owed.
	o.missed = o.audits != nil && o.audits.verified && !known && !o.at.InPlace

	if now := e.Clock.Now(); o.at.InPlace || o.watched {
		e.table.See(now, o.object, o.at.InPlace)
	} else {
		e.table.Find(now, o.object)
	}

	o.err = nil // a worker checks it again

	if known || !o.at.InPlace { // otherwise, only a family may have waited for it
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

// retarget sets the target. The lock must be held.
func (e *Engine) retarget(now time.Time, t *Target) {
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
	e.review(now, old, t)
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
	e.table.Controlled(now, t.Set.Controlled(), t.View.Stops() && e.few())
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

// listed records that a source has reported all objects.
func (e *Engine) listed(id sourceID) {
	e.update(func(time.Time) { delete(e.unlisted, id) })
	notify(e.seeks)
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

// check panics if the invariant of the engine does not hold. The lock must be held.
func (e *Engine) check() {
	for _, l := range e.looks {
		if l.verified && l.owed {
			invariants.Violated("%s is verified, but a pass has to look for misplaced objects", l.resource.GroupResource())
		}
	}
}
