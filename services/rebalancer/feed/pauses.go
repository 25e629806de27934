package feed

import (
	"hash/fnv"
	"time"
)

// Pauses are the pauses between attempts. Each is twice as long as the previous one, up to a maximum, plus up to a fifth. The
// extra part depends on a name: sources that fail together do not retry together, but a run can still be repeated exactly.
// Only one goroutine may use Pauses. The zero value has pauses of 0; create them with [NewPauses].
type Pauses struct {
	seed           uint64
	first, longest time.Duration
	n              int
}

// NewPauses returns the pauses for a name, from the first to the longest.
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

	// Fibonacci hashing: consecutive numbers result in distant values.
	spread := (p.seed + uint64(p.n)) * 0x9e3779b97f4a7c15 >> 32 //nolint:gosec // a small number

	return d + d/5*time.Duration(spread%1000)/1000
}

// Reset restarts with the first pause.
func (p *Pauses) Reset() { p.n = 0 }

// Attempts returns the pauses between attempts of the named source at the API server: 0.2 s to 30 s.
func Attempts(name string) Pauses { return NewPauses(name, 200*time.Millisecond, 30*time.Second) }
