package obligation

import (
	"time"

	"github.com/clusterring/clusterring/services/internal/invariants"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// Outcome is what a worker reports of a job.
type Outcome struct {
	// Object is the object as the worker has seen it last, by reading it or by the answer to a write; nil if it does not exist.
	Object *objects.Object
	// Event says what is to follow: [SeenInPlace], [Woken] to go on at once, [Asked], [Blocked] or [Failed].
	Event Event
	// Cause is what a blocked object waits for. RetryAfter is when one of all that wait for it tries again; not if it is zero.
	Cause      Cause
	RetryAfter time.Duration
	// Reason says, for people, why nothing can be done or what has failed.
	Reason string
	// Stale says that the object may have changed, nobody knows how: a write was given up that may have been carried out.
	Stale bool
	// Brief says that the next attempt may well succeed: pauses between attempts stay short.
	Brief bool
}

// Late is a drain that was not acknowledged in time.
type Late struct {
	// ID names the object, Shard the shard that has not given it up.
	ID    objects.ID
	Shard string
	// After is how long ago it was asked.
	After time.Duration
}

const (
	// firstPause and longestPause bound the pause after a failure. It doubles with each.
	firstPause   = 10 * time.Millisecond
	longestPause = 30 * time.Second
	// briefPause bounds it where nothing but another change of the object was in the way.
	briefPause = 100 * time.Millisecond
)

// pause returns how long to wait after so many failures. It is spread by the object, so that many that fail together do not try again
// together.
func (e *entry) pause(brief bool) time.Duration {
	d := longestPause
	if brief {
		d = briefPause
	}

	if shift := e.failures - 1; shift < 12 {
		d = min(firstPause<<shift, d)
	}

	spread := (len(e.object.Name)*7 + int(sum(e.object.Name))) % 100

	return d - d/400*time.Duration(spread) // up to a quarter less
}

func sum(name string) (n uint32) {
	for i := range len(name) {
		n = n*31 + uint32(name[i])
	}

	return n % 1000
}

// Report takes note of what a worker has come to. If the drain of the object is late, and that is news, it says so.
func (t *Table) Report(now time.Time, id objects.ID, out Outcome) (late Late, news bool) {
	if invariants.Enabled {
		defer t.check()
	}

	e, ok := t.entries[id]
	if !ok || e.phase != Moving {
		return Late{}, false // the ring does not have the resource any more
	}

	switch {
	case e.left:
		t.end(now, e)
		return Late{}, false
	case e.again && (e.doubted || !t.outdated(e, out)):
		t.reportLater(now, e, out)
		return Late{}, false
	}

	if out.Object != nil {
		t.replace(e, *out.Object)
	}

	e.stale = out.Stale

	switch out.Event { //nolint:exhaustive // others do not come from workers
	case SeenInPlace:
		t.end(now, e)
		return Late{}, false
	case Failed:
		e.failures++
		t.after(now, e, e.pause(out.Brief))
	case Blocked:
		e.cause = out.Cause
		e.failures = 0
	case Asked:
		e.failures = 0
	}

	t.move(e, out.Event)
	t.slot(now, e)

	switch e.phase { //nolint:exhaustive // the others have no more to it
	case Delayed:
		e.reason = out.Reason
		return Late{}, false // it tries again, also for others
	case Due:
		return Late{}, false // it goes on
	case Parked:
		t.park(now, e, out)
	case Draining:
		late, news = t.await(now, e)
	}

	if e.phase != Due {
		t.tried(e)
	}

	return late, news
}

// outdated reports whether what was seen while the worker had the object is no newer than what the worker has seen of it.
func (t *Table) outdated(e *entry, out Outcome) bool {
	return out.Object != nil && !out.Stale &&
		(out.Object.ResourceVersion == e.seen || objects.Older(e.seen, out.Object.ResourceVersion))
}

// reportLater ends the worker's turn with an object that was seen to change after what the worker reports.
func (t *Table) reportLater(now time.Time, e *entry, out Outcome) {
	if o := out.Object; o != nil {
		seen := e.seen

		if objects.Older(e.object.ResourceVersion, o.ResourceVersion) {
			t.replace(e, *o)
			e.inPlace, e.stale = false, objects.Older(o.ResourceVersion, seen)
		}

		if objects.Older(e.seen, seen) {
			e.seen = seen
		}

		// What is newer than the version that a write builds on has come after it, or has kept it from being carried out.
		e.stale = e.stale || out.Stale && !objects.Older(o.ResourceVersion, e.object.ResourceVersion)
	}

	if e.inPlace && !e.stale {
		t.end(now, e)
		return
	}

	if out.Event == Failed { // or it would be tried without a pause while the object changes
		e.failures++
		t.after(now, e, e.pause(out.Brief))
		t.move(e, Failed)
	} else {
		t.move(e, Woken)
	}

	t.slot(now, e)
}

// await has a drain looked at when it is late, and again and again from then on.
func (t *Table) await(now time.Time, e *entry) (late Late, news bool) {
	due := e.since.Add(t.limits.DrainTimeout)
	if now.Before(due) {
		t.at(e, due)
		return Late{}, false
	}

	t.after(now, e, t.limits.DrainTimeout)

	if e.late {
		return Late{}, false
	}

	t.slots.count(e.holds, false, -1)
	e.late = true
	t.slots.count(e.holds, true, 1)
	t.count(e)
	t.wakeSlots(now) // it holds none of the total any more

	return Late{ID: e.object.ID, Shard: e.holds, After: now.Sub(e.since).Round(time.Second)}, true
}
