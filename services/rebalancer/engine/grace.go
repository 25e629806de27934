package engine

import (
	"time"
)

// comeback is how long a ring waits for more of its shards after one has come back: about as long as a process takes to start
// and to acquire its Lease.
const comeback = 15 * time.Second

// longestComeback limits the wait if shards come back one after another, and leave again: objects of lost shards must not wait for as long as that
// lasts.
const longestComeback = 4 * comeback

// grace prevents the first shard that comes back after a disruption from getting all objects. The objects of lost shards wait
// for a while if fewer than half of the shards are available that were available when the ring last converged, and one has
// just come back. Otherwise, these objects would move to the few available shards, and back again when the other shards
// follow. Objects without a shard do not wait. Objects of shards that leave do not wait either while no shard comes back.
type grace struct {
	// known is the number of shards that were available when the ring last converged. Before the first convergence, it is the
	// initial number of Leases, whoever holds them.
	known int
	// until is the end of the wait; zero if objects do not wait. began is when the first shard came back, and last when the last one did.
	until, began, last time.Time
}

// retarget records another set of available shards. joined reports whether a shard has joined, and leases is the number of
// Leases.
func (g *grace) retarget(now time.Time, available, leases int, joined bool) {
	if g.known == 0 {
		g.known = leases
	}

	switch {
	case 2*available >= g.known:
		*g = grace{known: g.known}
	case joined:
		if now.Sub(g.last) > longestComeback {
			g.began = now
		}

		g.last = now
		g.until = now.Add(min(comeback, g.began.Add(longestComeback).Sub(now)))
	}
}

// wait returns how long objects of lost shards have to wait; zero or negative if they do not have to.
func (g *grace) wait(now time.Time) time.Duration { return g.until.Sub(now) }
