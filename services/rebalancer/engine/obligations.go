package engine

import (
	"fmt"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
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

// answered wakes what waits until writes of a resource are answered again.
func (s *state) answered(of schema.GroupResource) {
	s.update(func(time.Time) { s.table.Wake(work.AnswerTo(of)) })
}

// Gathered implements [move.Obligations].
func (s *state) Gathered(o feed.Object, to string) (h contract.Handover, since time.Time, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	uid, f := s.familyOf(o)

	switch {
	case f == nil && o.Controller != nil && !s.ancestors.Between(o.GVR.GroupResource()):
		return nil, time.Time{}, true // nothing has ever followed an object of this kind
	case f == nil:
		s.kin.begun++
		uid, f = o.UID, &family{owner: o.ID, since: s.clock.Now(), number: s.kin.begun, members: map[feed.ID]feed.Object{}}
		s.arrived(o.ID) // another object of that name
		s.families.byUID[uid], s.families.byName[o.ID] = f, uid
		s.table.Given(o)
	case uid == o.UID && f.owner != o.ID: // the resource is served in another version
		delete(s.families.byName, f.owner)
		f.owner, s.families.byName[o.ID] = o.ID, uid
	}

	if f.to != to {
		f.to = to
		s.redirect(uid, f)
		s.changed()
	}

	n, known := s.table.Followers(o)
	if !known {
		notify(s.gather)
	}

	return maps.Clone(f.handover), f.moved, known && n == 0
}

// Given implements [move.Obligations].
func (s *state) Given(owner feed.ID, uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.families.byUID[uid] != nil && s.families.byName[owner] == uid
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
