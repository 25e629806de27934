package engine

import (
	"time"
)

// comeback is how long a ring waits for more of its shards after one has come back: about as long as it takes to start a process that
// takes its Lease.
const comeback = 15 * time.Second

// grace keeps the first shard that comes back after a disruption from getting everything. Where less than half of the shards are there
// that were there when the ring had converged last, and one has just come back, the objects of the others wait for a while: they would
// go to the few, and back again as the others follow. Objects without a shard do not wait, and neither do those of shards that leave while
// none comes back.
type grace struct {
	// known is the number of available shards when the ring had converged last; until it has, that of the Leases that there were at first,
	// whoever holds them.
	known int
	// until is how long objects wait; zero if they do not.
	until time.Time
}

// retarget takes note of another set of available shards; joined reports whether one has come, leases is how many Leases there are.
func (g *grace) retarget(now time.Time, available, leases int, joined bool) {
	if g.known == 0 {
		g.known = leases
	}

	switch {
	case 2*available >= g.known:
		g.until = time.Time{}
	case joined:
		g.until = now.Add(comeback)
	}
}

// wait returns how long objects of lost shards have to wait; not positive if they have not.
func (g *grace) wait(now time.Time) time.Duration { return g.until.Sub(now) }
