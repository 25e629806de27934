package lease

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Observer measures how long Leases have not changed, by the clock of its caller. It is safe for concurrent use, and its zero
// value is ready to use. It remembers every Lease until [Observer.Forget].
type Observer struct {
	// Sight determines which time counts; nil means all time. Do not change it while the observer is in use.
	Sight *Sight

	mu   sync.Mutex
	seen map[types.NamespacedName]observation
}

// observation is a record and when it was first seen.
type observation struct {
	record Record
	since  time.Time
	// kept is when this holder was first seen to have acquired the Lease.
	kept time.Time
	// own is the duration with which the shard last held the Lease.
	own time.Duration
}

// Seen is what an observer has measured about a Lease. No value is negative.
type Seen struct {
	// Age is how long the Lease has been seen with its record. It is zero while the observer cannot see renewals.
	Age time.Duration
	// Kept is how long ago the holder was first seen to have acquired the Lease; all time counts.
	Kept time.Duration
	// Own is the duration of the Lease when its shard last held it; zero if that was not seen.
	Own time.Duration
}

// Observe returns how long the Lease has been seen with this record. The result is zero if the record is new or differs from
// that of the last call, and never negative. Pass times of one clock. Times of time.Now contain a monotonic reading, so changes
// of the wall clock do not affect the age.
//
// The age is at most the time since the Lease changed, so a late call errs in favor of the shard. Only time counts in which a
// change could be seen: see [Sight].
func (o *Observer) Observe(id types.NamespacedName, rec Record, now time.Time) time.Duration {
	return o.Look(id, rec, now).Age
}

// Look does the same as Observe, and returns everything that was measured.
func (o *Observer) Look(id types.NamespacedName, rec Record, now time.Time) Seen {
	o.mu.Lock()
	defer o.mu.Unlock()

	last, ok := o.seen[id]
	if !ok || !last.record.Equal(rec) {
		last = last.next(id.Name, rec, now)

		if o.seen == nil {
			o.seen = map[types.NamespacedName]observation{}
		}

		o.seen[id] = last
	}

	seen := Seen{Kept: max(now.Sub(last.kept), 0), Own: last.own}
	if since, sees := o.Sight.Since(rec.duration(), now); sees {
		if last.since.After(since) {
			since = last.since
		}

		seen.Age = max(now.Sub(since), 0)
	}

	return seen
}

// next returns the observation after the shard's Lease was first seen with this record.
func (o observation) next(shard string, rec Record, now time.Time) observation {
	if o.kept.IsZero() || o.record.Holder != rec.Holder || !o.record.AcquireTime.Equal(rec.AcquireTime) {
		o.kept = now
	}

	if rec.HeldBy(shard) {
		o.own = rec.duration()
	}

	o.record, o.since = rec, now

	return o
}

// Forget drops what is known about a Lease. If the Lease is seen again, its age starts at zero.
func (o *Observer) Forget(id types.NamespacedName) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.seen, id)
}
