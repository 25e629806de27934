package lease

import (
	"sync"
	"time"
)

// gaps are the longest times between two looks at the API server that count as looking all the time, by [gapOf]. A shard
// that lives renews its Lease every third of its duration; an outage as long as its gap keeps it from that for less than
// 2D, down to Leases of 3 s.
var gaps = [...]time.Duration{3 * time.Second, 5 * time.Second, 10 * time.Second}

// gapOf says which of the gaps counts for a Lease of this duration.
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

// Sight knows when its owner could see the API server, and so whether a Lease that did not change was not renewed or only
// not seen. While the API server does not answer, no shard can renew; while the owner is frozen, it sees no renewal.
//
// Invariants:
//
//  1. Time counts only between two looks that succeeded and were no further apart than the gap: 3 s for Leases shorter than
//     10 s, 5 s for those shorter than 20 s, 10 s for others.
//  2. After a longer gap everything begins anew, at the end of the look that ended it.
//  3. From when a look began nothing is known to be later, and what it showed is not known to be earlier than its end: a
//     slow look, or one during which the owner was frozen, errs in favour of the shard.
//
// It is safe for concurrent use. The zero value has seen nothing yet. A nil Sight sees all the time.
type Sight struct {
	mu    sync.Mutex
	any   bool
	upTo  time.Time            // when the latest look that succeeded began
	since [len(gaps)]time.Time // since when it sees without a gap
	short time.Time            // when a Lease with the shortest gap was asked about last
}

// pauses between looks: a third of the gap, or less.
const (
	shortPause = time.Second
	longPause  = 2 * time.Second
	// shortFor is how long after the last question about a short Lease there may be more.
	shortFor = time.Minute
)

// Saw notes a look that began and ended at these times: the API server answered from its storage. It reports whether the
// look ended a gap. Pass times of one clock that goes on while the process is frozen, as those of time.Now do.
func (s *Sight) Saw(began, ended time.Time) (gap bool) {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range gaps {
		if !s.any || ended.Sub(s.upTo) > gaps[i] {
			s.since[i], gap = ended, true
		}
	}
	if !s.any || began.After(s.upTo) {
		s.upTo = began
	}
	s.any = true
	return gap
}

// Since returns since when changes of a Lease of the given duration could be seen without a gap, until now. It reports
// false if they cannot be seen now.
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
	return s.since[i], s.any && now.Sub(s.upTo) <= gaps[i]
}

// Pause returns how soon after a look the next should follow, so that a slow one makes no gap: after 2 s, or after 1 s if
// Leases shorter than 10 s were asked about lately.
func (s *Sight) Pause(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.short.IsZero() || now.Sub(s.short) > shortFor {
		return longPause
	}
	return shortPause
}
