package work

import (
	"hash/crc32"
	"time"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// Outcome is the result of a job.
type Outcome struct {
	// Object is the object as the worker last saw it, in a read or in the response to a write; nil if it does not exist.
	Object *feed.Object
	// Next is what becomes of the obligation: [InPlace] if the object is in its place, does not concern the ring, or does
	// not exist; [Due] to continue immediately; [Draining]; [Parked]; or [Delayed] if a request has failed, or a write has
	// not brought the object to its place.
	Next Phase
	// Cause is what a parked object waits for. RetryAfter is when one of all objects with this cause retries; 0 means
	// never.
	Cause      Cause
	RetryAfter time.Duration
	// To is the next shard of an object that waits for its followers, which have to move there.
	To string
	// Owner is the owner of the object if it was read and is not in its place.
	Owner *feed.Object
	// Reason is a text that explains why nothing can be done, or what has failed.
	Reason string
	// Stale reports whether the object may have changed in an unknown way: an abandoned write may have been executed.
	Stale bool
	// Brief reports whether the next attempt is likely to succeed, so that pauses stay short.
	Brief bool
	// Full reports whether an attempt has failed because the annotation of a hand-over does not fit into the object.
	Full bool
	// Wrote reports whether a write was sent, and Took how long the API server took for it. Unanswered reports whether it
	// failed so late that the API server has probably waited for somebody in vain.
	Wrote, Unanswered bool
	Took              time.Duration
	// Version is the resource version of the object after a write that has changed it.
	Version string
}

// Late is a drain that was not acknowledged in time.
type Late struct {
	// ID identifies the object, and Shard is the shard that has not released it.
	ID    feed.ID
	Shard string
	// After is the time since the drain began.
	After time.Duration
}

const (
	// firstPause and longestPause limit the pause after a failure, which doubles with each failure.
	firstPause   = 10 * time.Millisecond
	longestPause = 30 * time.Second
	// briefPause limits it if only another change of the object has caused the failure.
	briefPause = 100 * time.Millisecond
	// many is the number of failures in a row, over about five seconds, after which an object is failing.
	many = 10
)

// fail records another failure in a row. Those that only another change of the object explains do not make it failing.
func (e *entry) fail(out Outcome) {
	failures := e.failures + 1
	if out.Brief {
		failures = min(failures, many-1)
	}

	e.plain = e.plain || out.Full
	e.failed(failures, out.Reason)
}

// succeed ends the failures in a row.
func (e *entry) succeed() { e.failed(0, "") }

// failed sets the number of failures in a row, and the last one.
func (e *entry) failed(failures int, reason string) {
	if e.failing() {
		e.lane.failing--
	}

	if e.failures, e.reason = failures, reason; e.failing() {
		e.lane.failing++
	}
}

// failing reports whether many attempts have failed in a row.
func (e *entry) failing() bool { return e.failures >= many }

// pause returns the pause after the current number of failures. It depends on the name of the object, so that objects
// that fail together do not retry together.
func (e *entry) pause(brief bool) time.Duration {
	d := longestPause
	if brief {
		d = briefPause
	}

	if shift := e.failures - 1; shift < 12 {
		d = min(firstPause<<shift, d)
	}

	return d - d/400*time.Duration(crc32.ChecksumIEEE([]byte(e.object.Name))%100) // up to a quarter less
}

// Report records the result of a job. It returns the drain of the object if it has just become late.
func (t *Table) Report(now time.Time, id feed.ID, out Outcome) *Late {
	defer t.check()

	if out.Object != nil {
		t.reached(*out.Object)
	}

	e, ok := t.entries[id]
	if !ok || e.phase != Moving {
		return nil // the ring no longer has the resource
	}

	t.answered(now, e.lane, out)
	t.wrote(e, out)

	if out.Owner != nil && e.news < Doubted {
		t.Find(now, *out.Owner)
	}

	cause, asked := e.cause, e.object.Draining

	switch {
	case e.news == Dropped:
		t.end(now, e)
		return nil
	case e.news == Doubted, e.news != Quiet && !t.outdated(e, out):
		t.overtaken(now, e, out)

		if out.Next != Delayed { // a failure would be retried without a pause while the object changes
			out.Next = Due
		}
	default:
		if out.Object != nil {
			t.replace(now, e, *out.Object)
		}

		e.stale = out.Stale
	}

	switch out.Next { //nolint:exhaustive // nothing to do before others
	case InPlace:
		t.end(now, e)
		return nil
	case Delayed:
		if !out.Brief && t.beyondFailing(e) {
			t.drop(now, e)
			return nil
		}

		e.fail(out)
		t.at(e, now.Add(e.pause(out.Brief)))
	case Parked:
		e.cause = out.Cause
		e.succeed()
	case Draining:
		if e.succeed(); !asked {
			e.since = now
		}
	}

	t.move(e, out.Next)
	t.permit(now, e)

	var late *Late

	switch e.phase { //nolint:exhaustive // nothing to do in other phases
	case Delayed, Due:
		return nil // it retries, also for others, or it continues
	case Parked:
		t.park(now, e, out)
	case Draining:
		late = t.await(now, e)
	}

	if e.phase != Due {
		t.tried(e, cause)
	}

	return late
}

// outdated reports whether everything that was seen while the worker had the object is at most as new as what the
// worker has seen.
func (t *Table) outdated(e *entry, out Outcome) bool {
	return out.Object != nil && !out.Stale &&
		(out.Object.ResourceVersion == e.seen || feed.Older(e.seen, out.Object.ResourceVersion))
}

// overtaken records the object that a worker reports, although the object was seen to change after that, or something
// else has.
func (t *Table) overtaken(now time.Time, e *entry, out Outcome) {
	o, seen := out.Object, e.seen
	if o == nil {
		return
	}

	if feed.Older(e.object.ResourceVersion, o.ResourceVersion) {
		t.replace(now, e, *o)
		e.stale = feed.Older(o.ResourceVersion, seen)
	}

	if feed.Older(e.seen, seen) {
		e.seen = seen
	}

	// A version that is newer than the base of the write came after the write, or has prevented its execution.
	e.stale = e.stale || out.Stale && !feed.Older(o.ResourceVersion, e.object.ResourceVersion)
}

// await schedules a check of a drain for when it becomes late, and then repeatedly. It returns the drain if it has just
// become late.
func (t *Table) await(now time.Time, e *entry) *Late {
	due := e.since.Add(t.limits.DrainTimeout)
	if now.Before(due) {
		t.at(e, due)
		return nil
	}

	t.at(e, now.Add(max(t.limits.DrainTimeout, now.Sub(e.since)/2))) // its watch reports the answer earlier

	if e.late {
		return nil
	}

	h := e.lane.held[e.holds]
	if h.silent++; h.silent == 1 {
		h.since = e.since
	}

	e.late = true
	t.count(e.lane, e.holds, true, 1) // first, so that the shard is not forgotten
	t.count(e.lane, e.holds, false, -1)
	t.grantNext(now) // it no longer holds a permit of the total

	return &Late{ID: e.object.ID, Shard: e.holds, After: now.Sub(e.since).Round(time.Second)}
}

// Phase is the state of an obligation. The zero value means that there is no obligation.
type Phase uint8

// The phases.
const (
	// InPlace means that the object is not known to be out of place.
	InPlace Phase = iota
	// Due means that the obligation waits for a worker.
	Due
	// Moving means that a worker has the obligation: it reads, decides and writes.
	Moving
	// Draining means that the obligation waits for the object's shard to acknowledge the drain.
	Draining
	// Parked means that the obligation waits for its cause to change.
	Parked
	// Delayed means that the obligation waits for a pause to end, after a failure.
	Delayed
)

var phases = [...]string{"none", "due", "moving", "draining", "parked", "delayed"}

func (p Phase) String() string { return phases[p] }

// News is what has happened while a worker has the object. The zero value means nothing.
type News uint8

// The news.
const (
	// Quiet means that nothing has happened.
	Quiet News = iota
	// Sighted means that the object was seen, or has changed. The later of this and of the worker's report counts, by the
	// version.
	Sighted
	// Doubted means that something else has changed that the worker may have used for its decision. Of its report, only
	// the object counts.
	Doubted
	// Dropped means that the resource has left the ring.
	Dropped
)

// and returns the news after more of it. A sight does not end a doubt. It shows that the ring has a dropped resource
// again.
func (n News) and(more News) News {
	if n == Dropped && more == Sighted {
		return Doubted
	}

	return max(n, more)
}
