package engine

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/placement"
)

// observe records an object that a source has seen, when there is room. If the check of its namespace or of its owner fails,
// the object counts as out of place: a worker will check again.
func (e *Engine) observe(ctx context.Context, lookup placement.Lookup, o feed.Object) (at placement.Assessment, inPlace bool) {
	return e.observed(ctx, lookup, sight{object: o})
}

func (e *Engine) observed(ctx context.Context, lookup placement.Lookup, seen sight) (at placement.Assessment, inPlace bool) {
	e.ancestors.Saw(seen.object.GVR.GroupResource(), seen.object.UID, seen.object.Controller)

	for {
		t := e.Target()

		at, err := t.Assess(ctx, lookup, seen.object)
		seen.inPlace, seen.object.Above = err == nil && at.InPlace, at.Above

		if !seen.inPlace && seen.held.keep(ctx, seen.object) {
			return at, false
		}

		room := seen.room
		if room == nil {
			room = func() bool {
				_, known := e.table.Has(seen.object.ID)

				return known || !e.table.Full()
			}
		}

		if !seen.inPlace && !e.await(ctx, e.room, room) || e.saw(t, seen) {
			return at, seen.inPlace
		}
	}
}

// troubled records that a source cannot be read.
func (e *Engine) troubled(id sourceID, err error) {
	e.fail(id, err)

	if err != nil && e.Trouble != nil {
		e.Trouble()
	}
}

// unassigned receives the objects that have no available shard.
type unassigned struct {
	e   *Engine
	id  sourceID
	gvr schema.GroupVersionResource
	// listed are the misplaced objects of the current list.
	listed sets.Set[feed.ID]
}

func (s *unassigned) Begin() {
	s.listed = sets.New[feed.ID]()
	s.e.anew()
	s.e.listing(s.id)
}

func (s *unassigned) Present(ctx context.Context, o feed.Object) {
	if s.listed == nil && s.e.past(o) {
		return
	}

	if _, inPlace := s.e.observe(ctx, s.e.lookup(), o); !inPlace && s.listed != nil {
		s.listed.Insert(o.ID)
	}
}

func (s *unassigned) Gone(id feed.ID, resourceVersion string) {
	s.e.unsure(id, resourceVersion)
}

func (s *unassigned) Listed() {
	s.e.unlistedBut(func(id feed.ID) bool {
		return id.GVR == s.gvr && (s.id.namespace == "" || s.id.namespace == id.Namespace) && !s.listed.Has(id)
	})
	s.listed = nil
	s.e.listed(s.id)
}

func (s *unassigned) Failed(err error) {
	if err != nil {
		s.listed = nil
		s.e.listed(s.id) // when the list will succeed is unknown
	}

	s.e.troubled(s.id, err)
}

// unselected receives the objects with a shard that a requirement of the ring's selector excludes. They may come back, or lose their shard: then, an
// obligation reads its object again.
type unselected struct {
	e  *Engine
	id sourceID
}

func (s *unselected) Begin() { s.e.listing(s.id) }

func (s *unselected) Present(ctx context.Context, o feed.Object) {
	s.e.observe(ctx, s.e.lookup(), o)
}

func (s *unselected) Gone(id feed.ID, resourceVersion string) { s.e.unsure(id, resourceVersion) }

func (s *unselected) Listed() { s.e.listed(s.id) }

func (s *unselected) Failed(err error) {
	if err != nil {
		s.e.listed(s.id) // when the list will succeed is unknown
	}

	s.e.troubled(s.id, err)
}

// drains receives the objects that carry the drain label.
type drains struct {
	e   *Engine
	id  sourceID
	gvr schema.GroupVersionResource
	// known are the drains that existed when the current list began, with the version in which each was last seen. listed are
	// the objects of the list. Both are nil between lists.
	known  map[feed.ID]string
	listed sets.Set[feed.ID]
}

func (s *drains) Begin() {
	s.known, s.listed = s.e.drainsOf(s.gvr), sets.New[feed.ID]()
	s.e.listing(s.id)
}

func (s *drains) Present(ctx context.Context, o feed.Object) {
	if s.listed != nil {
		s.listed.Insert(o.ID)
	}

	s.e.observed(ctx, s.e.lookup(), sight{object: o, watched: true})
}

func (s *drains) Gone(id feed.ID, resourceVersion string) { s.e.released(id, resourceVersion) }

// Listed ends the drains that existed before the list and are not in the list: their label was removed while no watch was
// open, and no event will report the removal. The watch reports drains that began meanwhile, or that were seen since.
func (s *drains) Listed() {
	now := s.e.drainsOf(s.gvr)

	for id, version := range s.known {
		if now[id] == version && !s.listed.Has(id) {
			s.e.released(id, version)
		}
	}

	s.known, s.listed = nil, nil
	s.e.listed(s.id)
}

func (s *drains) Failed(err error) {
	if err != nil {
		s.known, s.listed = nil, nil
		s.e.listed(s.id)
	}

	s.e.troubled(s.id, err)
}
