package engine

import (
	"fmt"
	"time"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// These methods are what a move asks the engine and reports to it. [move.Obligations] documents each method.

// See implements [move.Obligations].
func (s *state) See(o feed.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.see(sight{object: o})
}

// Has implements [move.Obligations].
func (s *state) Has(id feed.ID) (feed.Object, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.table.Has(id)
}

// Grant implements [move.Obligations].
func (s *state) Grant(id feed.ID, shard string) (granted bool) {
	s.update(func(now time.Time) { granted = s.table.Grant(now, id, shard) })

	return granted
}

// Held implements [move.Obligations].
func (s *state) Held(shard string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.table.Held(shard)
}

// Free implements [move.Obligations].
func (s *state) Free(shard string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.table.Waits(work.HeldBy(shard)) {
		s.table.Wake(work.HeldBy(shard))
		s.changed()
	}
}

// hangs records that the write of an object hangs.
func (s *state) hangs(id feed.ID) {
	s.update(func(now time.Time) { s.table.Hangs(now, id) })
}

// Grace implements [move.Obligations].
func (s *state) Grace() (wait time.Duration, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if wait = s.grace.wait(s.clock.Now()); wait <= 0 {
		return 0, ""
	}

	return wait, fmt.Sprintf("%d of %d shards have come back; others may follow within %s",
		len(s.target.View.AvailableShards()), s.grace.known, comeback)
}
