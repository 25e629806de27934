package feed

import (
	"hash/fnv"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Pauses are the pauses between attempts. Each is twice as long as the previous one, up to a maximum. All are up to a
// fifth longer, which depends on a name: sources that fail together do not retry together, but a run can be repeated
// exactly. Only one goroutine may use Pauses. The zero value has pauses of 0; create them with [NewPauses].
type Pauses struct{ all, left wait.Backoff }

// NewPauses returns the pauses for a name, from the first to the longest.
func NewPauses(name string, first, longest time.Duration) Pauses {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails
	spread := 1 + float64(h.Sum64()%1000)/5000
	all := wait.Backoff{
		Duration: time.Duration(spread * float64(first)), Cap: time.Duration(spread * float64(longest)),
		Factor: 2, Steps: math.MaxInt,
	}

	return Pauses{all, all}
}

// Next returns the next pause.
func (p *Pauses) Next() time.Duration { return p.left.Step() }

// Reset restarts with the first pause.
func (p *Pauses) Reset() { p.left = p.all }

// Attempts returns the pauses between attempts of the named source at the API server: 0.2 s to 30 s.
func Attempts(name string) Pauses { return NewPauses(name, 200*time.Millisecond, 30*time.Second) }
