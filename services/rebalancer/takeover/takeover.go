// Package takeover decides whether objects may be taken from a shard without asking it.
//
// It reads the shard's Lease from the API server's storage, because the caches that say "not available" may lag behind a
// shard that has taken its Lease back, and it remembers when Leases vanished, because a Lease that somebody deleted says
// nothing about the process that held it.
package takeover

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/membership"
)

const (
	// trust is how long an answer "not held" is used without asking again. It is far below the time that any shard needs to
	// notice that it lost its Lease and to start work again.
	trust = 250 * time.Millisecond
	// renew is how long before the end of its time such an answer is asked for again, so that nobody has to wait for the next.
	renew = trust / 2
	// askAgain is the pause after an answer that cannot say when it will change.
	askAgain = time.Second
	// forget is how long a shard without a Lease is remembered.
	forget = time.Hour
)

// Verdict is whether objects may be taken from a shard.
type Verdict struct {
	// Allowed says that the shard does not hold its Lease.
	Allowed bool
	// RetryAfter is when to ask again if it is not; always positive then.
	RetryAfter time.Duration
	// Reason says, for a person, why not.
	Reason string
}

// Guard answers for the shards of one ring. It may be used by several goroutines.
//
// Invariants:
//
//  1. No answer allows to take objects from a shard whose Lease was held by it a quarter of a second ago or later.
//  2. A shard whose Lease was deleted while it was held keeps its objects until the Lease has been absent for 2×D: only
//     then a process that renews it would have noticed, and stopped or made the Lease anew.
//  3. A shard that has never had a Lease since this guard watches is treated as if its Lease had been deleted when the guard
//     began.
type Guard struct {
	ring   string
	reader client.Reader
	clock  clock.PassiveClock
	began  time.Time

	mu      sync.Mutex
	longest time.Duration
	shards  map[string]*shard
}

type shard struct {
	reading sync.Mutex // held during a live read, so that there is one at a time

	// The rest is guarded by Guard.mu.
	held        bool // as last seen, by cache or live
	duration    time.Duration
	vanished    time.Time // zero while there is a Lease
	allowedTill time.Time
}

// New returns a guard for the named ring. The reader must not be a cache. The guard's observation begins now: pass every
// later view of the ring to [Guard.Observe].
func New(ring string, reader client.Reader, clk clock.PassiveClock) *Guard {
	return &Guard{
		ring: ring, reader: reader, clock: clk, began: clk.Now(),
		longest: lease.DefaultDuration, shards: map[string]*shard{},
	}
}

// Observe takes note of the ring's Leases as the cache has them.
func (g *Guard) Observe(view *membership.View) {
	g.mu.Lock()
	defer g.mu.Unlock()

	now := g.clock.Now()
	held := map[string]bool{}

	for _, s := range view.Shards() {
		held[s.Name] = held[s.Name] || s.Holder == s.Name
		g.longest = max(g.longest, s.Duration)

		known := g.shard(s.Name)
		known.held = held[s.Name]
		known.duration = s.Duration
		known.vanished = time.Time{}
	}

	for name, known := range g.shards {
		if _, present := held[name]; present {
			continue
		}

		if known.vanished.IsZero() {
			known.vanished = now
		}

		if now.Sub(known.vanished) > forget {
			delete(g.shards, name)
		}
	}
}

// shard returns what is known of a shard; g.mu is held.
func (g *Guard) shard(name string) *shard {
	known, ok := g.shards[name]
	if !ok {
		known = &shard{held: true, duration: g.longest, vanished: g.began}
		g.shards[name] = known
	}

	return known
}

// MayTake says whether objects may be taken from the named shard, by one live read of its Lease or by an answer that is
// fresh enough. Concurrent questions about one shard share the read, and while an answer is renewed that is still good, it is
// given to all but the one who renews it. The error is the API server's.
func (g *Guard) MayTake(ctx context.Context, name string) (Verdict, error) {
	g.mu.Lock()
	known := g.shard(name)
	g.mu.Unlock()

	switch left := g.allowedFor(known); {
	case left > renew:
		return Verdict{Allowed: true}, nil
	case left <= 0:
		known.reading.Lock()
	case !known.reading.TryLock():
		return Verdict{Allowed: true}, nil
	}
	defer known.reading.Unlock()

	if g.allowedFor(known) > renew { // thanks to whom we have waited for
		return Verdict{Allowed: true}, nil
	}

	asked := g.clock.Now()

	var leases coordinationv1.LeaseList

	err := g.reader.List(ctx, &leases,
		client.MatchingLabels{v1alpha1.LabelClusterRing: g.ring}, client.MatchingFields{"metadata.name": name})
	if err != nil {
		return Verdict{}, fmt.Errorf("read the Lease of shard %s: %w", name, err)
	}

	g.mu.Lock()
	defer g.mu.Unlock()

	v := known.judge(name, leases.Items, asked)
	if v.Allowed {
		known.allowedTill = asked.Add(trust)
	} else {
		known.allowedTill = time.Time{}
	}

	return v, nil
}

// allowedFor returns for how long the last answer still allows to take objects from the shard; not positive if it does not.
func (g *Guard) allowedFor(known *shard) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()

	return known.allowedTill.Sub(g.clock.Now())
}

// judge decides by the Leases of this name, read no earlier than at the given time.
func (s *shard) judge(name string, leases []coordinationv1.Lease, now time.Time) Verdict {
	for i := range leases {
		s.vanished = time.Time{}
		s.held = false

		if rec := lease.RecordOf(&leases[i]); rec.Holder == name {
			s.held = true
			s.duration = rec.Duration

			return Verdict{RetryAfter: askAgain, Reason: "shard " + name + " holds its Lease"}
		}
	}

	if len(leases) > 0 {
		return Verdict{Allowed: true}
	}

	if s.vanished.IsZero() {
		s.vanished = now
	}

	if wait := s.vanished.Add(2 * s.duration).Sub(now); s.held && wait > 0 {
		return Verdict{RetryAfter: wait, Reason: "the Lease of shard " + name + " was deleted, and its process may still work"}
	}

	return Verdict{Allowed: true}
}
