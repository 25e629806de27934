package ordinal

import (
	"k8s.io/utils/clock"
)

// SetClock replaces the clock by which deleted objects are forgotten.
func (p *Process) SetClock(c clock.WithDelayedExecution) { p.clock = c }

// Remembered returns of how many objects the reconcilers of the process know that they have run for them.
func (p *Process) Remembered() (count int) {
	p.mu.Lock()
	defer p.mu.Unlock()

	for _, r := range p.reconcilers {
		r.mu.Lock()
		count += len(r.ran)
		r.mu.Unlock()
	}

	return count
}
