package engine

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/placement"
)

// observe records an object that a source has seen, when there is room. If the check of its namespace or of its owner fails,
// the object counts as out of place: a worker will check again.
func (e *Engine) observe(ctx context.Context, seen sight) (at placement.Assessment, inPlace bool) {
	e.ancestors.Saw(seen.object.GVR.GroupResource(), seen.object.UID, seen.object.Controller)

	room := seen.room
	if room == nil {
		room = func() bool {
			_, known := e.table.Has(seen.object.ID)

			return known || !e.table.Full()
		}
	}

	for {
		t := e.Target()

		at, err := t.Assess(ctx, e.lookup(), seen.object)
		seen.inPlace, seen.object.Above = err == nil && at.InPlace, at.Above

		if !seen.inPlace && (seen.held.keep(ctx, seen.object) || !e.await(ctx, e.room, room)) || e.saw(t, seen) {
			return at, seen.inPlace
		}
	}
}

// troubled records that a source cannot be read; with a nil error, that it can be read again.
func (e *Engine) troubled(id sourceID, err error) {
	e.update(func(time.Time) {
		if err != nil {
			e.failures[id] = err.Error()
		} else {
			delete(e.failures, id)
		}
	})

	if err != nil && e.Trouble != nil {
		e.Trouble()
	}
}

// sink receives what a stream of a target shows: objects without an available shard, objects that carry the drain label, or
// objects with a shard that the selector of the ring excludes. The latter may come back, or lose their shard: then, an
// obligation reads its object again.
type sink struct {
	e  *Engine
	id sourceID
	// listed are the objects of the current list that are out of their place; nil between lists.
	listed sets.Set[feed.ID]
}

func (s *sink) Begin() {
	s.listed = sets.New[feed.ID]()

	if s.id.looksFor == forUnassigned {
		s.e.anew()
	}

	s.e.listing(s.id)
}

func (s *sink) Present(ctx context.Context, o feed.Object) {
	if s.id.looksFor == forUnassigned && s.listed == nil && s.e.past(o) {
		return
	}

	_, inPlace := s.e.observe(ctx, sight{object: o, watched: s.id.looksFor == forDraining})
	if s.listed != nil && !inPlace {
		s.listed.Insert(o.ID)
	}
}

func (s *sink) Gone(id feed.ID, resourceVersion string) {
	if s.id.looksFor == forDraining {
		s.e.released(id, resourceVersion)
	} else {
		s.e.unsure(id, resourceVersion)
	}
}

// Listed makes objects be read that should be in the list, and are not: they may have been assigned or released while no watch
// was open, and no event will report that.
func (s *sink) Listed() {
	if s.id.looksFor != forUnselected {
		s.e.missing(s.id.looksFor == forDraining, func(id feed.ID) bool {
			return id.GVR.GroupResource() == s.id.resource && (s.id.namespace == "" || s.id.namespace == id.Namespace) && !s.listed.Has(id)
		})
	}

	s.listed = nil
	s.e.listed(s.id)
}

func (s *sink) Failed(err error) {
	if err != nil {
		s.listed = nil
		s.e.listed(s.id) // when the list will succeed is unknown
	}

	s.e.troubled(s.id, err)
}
