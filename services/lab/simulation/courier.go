package simulation

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// courier delivers news late, but in order.
type courier struct {
	clock clock.Clock
	wake  chan struct{}

	mu   sync.Mutex
	line []news
}

type news struct {
	due  time.Time
	tell func()
}

func newCourier() *courier { return &courier{clock: clock.RealClock{}, wake: make(chan struct{}, 1)} }

// put schedules a call of tell after the delay, and after everything that was put before. It may be called with any
// lock held.
func (f *courier) put(delay time.Duration, tell func()) {
	f.mu.Lock()
	defer f.mu.Unlock()

	due := f.clock.Now().Add(delay)
	if n := len(f.line); n > 0 && !due.After(f.line[n-1].due) {
		due = f.line[n-1].due.Add(1)
	}

	f.line = append(f.line, news{due, tell})

	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// run delivers news until ctx ends.
func (f *courier) run(ctx context.Context) {
	for ctx.Err() == nil {
		f.mu.Lock()

		var tell func()

		wait := time.Hour

		if len(f.line) > 0 {
			if wait = f.line[0].due.Sub(f.clock.Now()); wait <= 0 {
				tell = f.line[0].tell
				f.line = f.line[1:]
			}
		}
		f.mu.Unlock()

		if tell != nil {
			tell()
			continue
		}

		pause(ctx, f.clock, wait, f.wake)
	}
}

// pause waits for the time, for a message on wake, or for the end of ctx.
func pause(ctx context.Context, c clock.Clock, d time.Duration, wake <-chan struct{}) {
	timer := c.NewTimer(max(d, 1))
	defer timer.Stop()

	select {
	case <-timer.C():
	case <-wake:
	case <-ctx.Done():
	}
}
