package lease

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Observer measures how long Leases have not changed, by one clock: that of its caller. It is safe for concurrent use,
// and its zero value is ready to use. It remembers every Lease that it was asked about until [Observer.Forget].
type Observer struct {
	// Sight says which time counts; nil means all. Do not change it once the observer is in use.
	Sight *Sight

	mu   sync.Mutex
	seen map[types.NamespacedName]observation
}

// observation is a record and when it was first seen.
type observation struct {
	record Record
	since  time.Time
	// kept is when this holder was first seen to have acquired it.
	kept time.Time
	// own is the duration with which the shard held it last.
	own time.Duration
}

// Seen is what an observer has measured of a Lease. Nothing in it is negative.
type Seen struct {
	// Age is how long the Lease has been seen with its record. It is zero while the observer cannot see.
	Age time.Duration
	// Kept is how long ago its holder was first seen to have acquired it, all time counted.
	Kept time.Duration
	// Own is the duration of the Lease when its shard held it last, zero if that was not seen.
	Own time.Duration
}

// Observe returns how long the Lease has been seen with this record: zero if it is new or differs from the last call's,
// and never less than zero. Pass the times of one clock; those of time.Now carry a monotonic reading, which makes the
// age immune to changes of the wall clock.
//
// The age is at most the time since the Lease changed, so a late call errs in favour of the shard. Only time counts in
// which a change could be seen: see [Sight].
func (o *Observer) Observe(id types.NamespacedName, rec Record, now time.Time) time.Duration {
	return o.Look(id, rec, now).Age
}

// Look does what Observe does, and returns all that was measured.
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

// next is the observation after the shard's Lease was first seen with this record.
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

// Forget drops what is known of a Lease. If it is seen again, its age starts at zero.
func (o *Observer) Forget(id types.NamespacedName) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.seen, id)
}
