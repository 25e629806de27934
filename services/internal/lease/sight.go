package lease

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// gaps are the longest times between two looks that count as continuous sight, by [gapOf]. A live shard renews its
// Lease every third of its duration; an outage as long as the gap and a pause prevents this for less than 2D, for
// Leases of 4 s or more.
var gaps = [...]time.Duration{3 * time.Second, 5 * time.Second, 10 * time.Second}

// gapOf returns the index of the gap for a Lease of this duration.
func gapOf(d time.Duration) int {
	switch {
	case d < 10*time.Second:
		return 0
	case d < 20*time.Second:
		return 1
	default:
		return 2
	}
}

// Sight records when its owner could see that Leases are written. It determines whether a Lease that did not change was
// not renewed or only not seen. While the API server does not answer, or refuses writes, no shard can renew; while the
// owner is frozen, it sees no renewal.
//
// Invariants:
//
//  1. Time counts only between two successful looks that were no further apart than the gap: 3 s for Leases shorter
//     than 10 s, 5 s for Leases shorter than 20 s, and 10 s for others.
//  2. After a longer gap, every age restarts at the end of the look that ended the gap.
//  3. What a look shows is only known to be as old as the beginning of the look, and only known to be seen at its end:
//     a slow look, or one during which the owner was frozen, errs in favor of the shard.
//
// Sight is safe for concurrent use. The zero value has seen nothing yet. A nil Sight sees all the time.
type Sight struct {
	mu    sync.Mutex
	upTo  time.Time            // when the latest successful look began; zero, which is long ago, if there was none
	since [len(gaps)]time.Time // since when it has seen without a gap
	short time.Time            // when a Lease with the shortest gap was last asked about
}

// Pauses between looks: at most a third of the gap.
const (
	shortPause = time.Second
	longPause  = 2 * time.Second
	// shortFor is how long after the last query about a short Lease another one is expected.
	shortFor = time.Minute
)

// Saw records a look that began and ended at these times: it has shown that a Lease was written, less than a pause
// before. It reports whether the look ended a gap. Pass times of one clock that continues while the process is frozen,
// as times of time.Now do.
func (s *Sight) Saw(began, ended time.Time) (gap bool) {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()

	for i := range gaps {
		if ended.Sub(s.upTo) > gaps[i] {
			s.since[i], gap = ended, true
		}
	}

	if began.After(s.upTo) {
		s.upTo = began
	}

	return gap
}

// Since returns since when changes of a Lease of the given duration have been visible without a gap, until now. It
// returns false if they are not visible now.
func (s *Sight) Since(d time.Duration, now time.Time) (since time.Time, sees bool) {
	if s == nil {
		return time.Time{}, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()

	i := gapOf(d)
	if i == 0 && now.After(s.short) {
		s.short = now
	}

	return s.since[i], now.Sub(s.upTo) <= gaps[i]
}

// Pause returns how soon the next look should follow, so that a slow look makes no gap: after 2 s, or after 1 s if
// Leases shorter than 10 s were asked about recently.
func (s *Sight) Pause(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()

	if now.Sub(s.short) > shortFor {
		return longPause
	}

	return shortPause
}

// Observer measures how long Leases have not changed, by the clock of its caller. It is safe for concurrent use, and
// its zero value is ready to use. It remembers every Lease until [Observer.Forget].
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

// Observe returns how long the Lease has been seen with this record. The result is zero if the record is new or differs
// from that of the last call, and never negative. Pass times of one clock. Times of time.Now contain a monotonic
// reading, so changes of the wall clock do not affect the age.
//
// The age is at most the time since the Lease changed, so a late call errs in favor of the shard. Only time counts in
// which a change could be seen: see [Sight].
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
	if since, sees := o.Sight.Since(rec.Duration, now); sees {
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
		o.own = rec.Duration
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
