package lease

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Observer measures how long Leases have not changed, by one clock: that of its caller. It is safe for concurrent use,
// and its zero value is ready to use. It remembers every Lease that it was asked about until [Observer.Forget].
type Observer struct {
	mu   sync.Mutex
	seen map[types.NamespacedName]observation
}

// observation is a record and when it was first seen.
type observation struct {
	record Record
	since  time.Time
}

// Observe returns how long the Lease has been seen with this record: zero if it is new or differs from the last call's,
// and never less than zero. Pass the times of one clock; those of time.Now carry a monotonic reading, which makes the
// age immune to changes of the wall clock.
//
// The age is at most the time since the Lease changed, so a late call errs in favour of the shard.
func (o *Observer) Observe(id types.NamespacedName, rec Record, now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	last, ok := o.seen[id]
	if ok && last.record.Equal(rec) {
		return max(now.Sub(last.since), 0)
	}
	if o.seen == nil {
		o.seen = map[types.NamespacedName]observation{}
	}
	o.seen[id] = observation{record: rec, since: now}
	return 0
}

// Forget drops what is known of a Lease. If it is seen again, its age starts at zero.
func (o *Observer) Forget(id types.NamespacedName) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.seen, id)
}
