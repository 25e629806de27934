package lease

import (
	"sync"
	"time"
)

// gaps are the longest times between two looks that count as continuous sight, by [gapOf]. A live shard renews its Lease every third of its
// duration; an outage as long as the gap and a pause prevents this for less than 2D, for Leases of 4 s or more.
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

// Sight records when its owner could see that Leases are written. It determines whether a Lease that did not change was not renewed or
// only not seen. While the API server does not answer, or refuses writes, no shard can renew; while the owner is frozen, it sees no renewal.
//
// Invariants:
//
//  1. Time counts only between two successful looks that were no further apart than the gap: 3 s for Leases shorter than 10 s,
//     5 s for Leases shorter than 20 s, and 10 s for others.
//  2. After a longer gap, every age restarts at the end of the look that ended the gap.
//  3. What a look shows is only known to be as old as the beginning of the look, and only known to be seen at its end: a slow
//     look, or one during which the owner was frozen, errs in favor of the shard.
//
// Sight is safe for concurrent use. The zero value has seen nothing yet. A nil Sight sees all the time.
type Sight struct {
	mu    sync.Mutex
	any   bool
	upTo  time.Time            // when the latest successful look began
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

// Saw records a look that began and ended at these times: it has shown that a Lease was written, less than a pause before. It reports whether the
// look ended a gap. Pass times of one clock that continues while the process is frozen, as times of time.Now do.
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

// Since returns since when changes of a Lease of the given duration have been visible without a gap, until now. It returns false
// if they are not visible now.
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

// Pause returns how soon the next look should follow, so that a slow look makes no gap: after 2 s, or after 1 s if Leases shorter
// than 10 s were asked about recently.
func (s *Sight) Pause(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.short.IsZero() || now.Sub(s.short) > shortFor {
		return longPause
	}

	return shortPause
}
