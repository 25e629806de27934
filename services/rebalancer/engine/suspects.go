package engine

import (
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/membership"
)

// suspects are the available shards at which objects may be out of place. They are collected from one target to the next until
// a pass over all objects has found nothing, when there are none.
//
// An object that was in place then, or was put in place since, is out of place if its partition has gone to another shard since:
// its shard is one of those that have lost partitions from some target to the next. Or its shard was away in between, and what was
// decided meanwhile has not reached the object. Objects of shards that are not available are found by the watch for those.
// What a replica of the assigner with an older view misplaces is none of these; that is what the pass over all objects is for.
type suspects struct {
	// notAll says that it is the shards alone, and not any shard; so the zero value suspects everybody.
	notAll bool
	shards sets.Set[string]
	// kin says that objects which follow others may be out of place there by themselves. When partitions go from shard to shard those follow their
	// owners, who have them looked for.
	kin bool
}

// suspectsOf returns the shards at which objects may be out of place because one target has followed another.
func suspectsOf(before, after *Target) suspects {
	if !before.Covers(after) {
		return suspects{}
	}

	was, is := before.View.Table(), after.View.Table()
	shards := sets.New(hashring.Losers(was, is)...)

	for _, name := range after.View.AvailableShards() {
		if !was.Has(name) {
			shards.Insert(name)
		}
	}

	return suspects{notAll: true, shards: shards}
}

// add suspects others, too.
func (s *suspects) add(others suspects) {
	s.notAll = s.notAll && others.notAll
	s.shards = s.shards.Union(others.shards)
	s.kin = s.kin || others.kin
}

// addAll suspects everybody.
func (s *suspects) addAll() { *s = suspects{} }

// addShards suspects some more shards, of anything.
func (s *suspects) addShards(names []string) {
	if len(names) > 0 {
		s.shards = s.shards.Union(sets.New(names...))
		s.kin = true
	}
}

// owners reports whether it is main objects alone that may be out of place.
func (s *suspects) owners() bool { return s.notAll && !s.kin }

// any reports whether anybody is suspected.
func (s *suspects) any() bool { return !s.notAll || s.shards.Len() > 0 }

// clear suspects nobody any more.
func (s *suspects) clear() { *s = suspects{notAll: true} }

// among returns those that are available; all if it is most of them, so that naming them would be of little use.
func (s *suspects) among(view *membership.View) (shards []string, all bool) {
	available := view.AvailableShards()

	if !s.notAll {
		return nil, true
	}

	for _, name := range available {
		if s.shards.Has(name) {
			shards = append(shards, name)
		}
	}

	return shards, 2*len(shards) > len(available)
}
