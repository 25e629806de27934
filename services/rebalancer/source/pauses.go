package source

import (
	"hash/fnv"
	"time"
)

// Pauses are those between attempts: each is twice as long as the one before, up to a bound, and up to a fifth longer. By how much
// follows from a name: those who fail together do not try again together, and yet a history can be repeated exactly. The zero value has
// no pauses; create them with [NewPauses]. One goroutine uses them.
type Pauses struct {
	seed           uint64
	first, longest time.Duration
	n              int
}

// NewPauses returns the pauses of the named one, from the first to the longest.
func NewPauses(name string, first, longest time.Duration) Pauses {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails

	return Pauses{seed: h.Sum64(), first: first, longest: longest}
}

// Next returns the next pause.
func (p *Pauses) Next() time.Duration {
	d := p.longest
	if p.n < 30 {
		d = min(p.longest, p.first<<p.n)
	}

	p.n++

	// Fibonacci hashing: numbers one after another come out far apart.
	spread := (p.seed + uint64(p.n)) * 0x9e3779b97f4a7c15 >> 32 //nolint:gosec // a small number

	return d + d/5*time.Duration(spread%1000)/1000
}

// Reset begins again with the first pause.
func (p *Pauses) Reset() { p.n = 0 }

// Attempts returns the pauses between attempts at the API server of the named one: 0.2 s to 30 s.
func Attempts(name string) Pauses { return NewPauses(name, 200*time.Millisecond, 30*time.Second) }
