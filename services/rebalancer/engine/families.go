package engine

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

const (
	// believed is how long a complete search for the followers of an object stays valid if the object then gets another
	// shard. maxMembers limits how many followers of all objects are stored for this case: 5 MB.
	believed   = 30 * time.Second
	maxMembers = 10_000
)

// family is an object that others follow. They move to its next shard before it does. No shard works on it, or it follows an
// object that is in its place.
type family struct {
	owner feed.ID
	// to is its next shard. since is when its shard released it.
	to    string
	since time.Time
	// moved is when one of the others has last reached its place, or when they were last redirected.
	moved time.Time
	// number is its number among all families, in the order in which they began. known is when the followers were recorded that a watch has
	// shown; zero if they were not.
	number int
	known  time.Time
	// members are the objects that follow it, as they were last seen; nil if they are not stored. complete is when a search
	// last found all of them.
	members  map[feed.ID]feed.Object
	complete time.Time
	// handover contains the resource versions of the followers that have reached the next shard. asked counts how often the
	// search had to be repeated.
	handover contract.Handover
	asked    int
}

// families are the families on the move, by the UID and by the name of the object that the others follow.
type families struct {
	byUID  map[types.UID]*family
	byName map[feed.ID]types.UID
	// members is the number of stored members of all families.
	members int
}

func newFamilies() families {
	return families{byUID: map[types.UID]*family{}, byName: map[feed.ID]types.UID{}}
}

// familyOf returns the family of an object, or of an object that it follows; nil if there is none. The lock must be held.
func (s *state) familyOf(o feed.Object) (types.UID, *family) {
	if f := s.families.byUID[o.UID]; f != nil {
		return o.UID, f
	}

	for _, uid := range o.Lineage() {
		if f := s.families.byUID[uid]; f != nil {
			return uid, f
		}
	}

	return "", nil
}

// redirect sends all followers of an object to its new next shard. If they are not known, they are searched again. The lock
// must be held.
func (s *state) redirect(uid types.UID, f *family) {
	f.handover, f.known, f.moved = contract.Handover{}, time.Time{}, s.clock.Now()

	switch {
	case f.members == nil:
		f.asked++ // the results of a list in progress are not stored
		s.table.Scattered(uid)
	case s.clock.Since(f.complete) > believed:
		s.table.Scattered(uid)
	}

	for _, id := range slices.SortedFunc(maps.Keys(f.members), feed.Compare) { // a random order could not be replayed
		o := f.members[id]
		if o.Shard == f.to && !o.Draining {
			f.handover.Reached(o.GVR.GroupResource(), o.ResourceVersion)
		} else {
			s.table.See(s.clock.Now(), o, false)
		}
	}

	s.table.Redirect(uid)
}

// follows records an object that follows others. The families that wait for it learn the version at which it arrived. The lock
// must be held.
func (s *state) follows(o feed.Object) {
	for _, uid := range o.Lineage() {
		if f := s.families.byUID[uid]; f != nil {
			s.families.keep(f, o)
		}
	}
}

// moved records that an object that follows others has reached its place. The lock must be held.
func (s *state) moved(now time.Time, o feed.Object) {
	for _, uid := range o.Lineage() {
		if f := s.families.byUID[uid]; f != nil {
			f.moved = now
		}
	}
}

// keep records an object that follows the family's object.
func (all *families) keep(f *family, o feed.Object) {
	if f.to == o.Shard && !o.Draining {
		f.handover.Reached(o.GVR.GroupResource(), o.ResourceVersion)
	}

	known, kept := f.members[o.ID]

	switch {
	case f.members == nil, kept && feed.Older(o.ResourceVersion, known.ResourceVersion):
		return
	case !kept && all.members >= maxMembers:
		all.members -= len(f.members)
		f.members = nil

		return
	case !kept:
		all.members++
	}

	f.members[o.ID] = o
}

// ended drops the family of an object that is no longer an obligation, and reports whether it is none. It asks the table, because a sight of the object
// may be old. The lock must be held.
func (s *state) ended(id feed.ID) bool {
	_, still := s.table.Has(id)
	if !still {
		s.arrived(id)
	}

	return !still
}

// left makes a pass visit all objects if the object, which is no longer an obligation, has left the ring because the ring does not select it: what
// follows the object has its labels still, and no source reports that. The lock must be held.
func (s *state) left(o feed.Object) {
	if r, role, ok := s.target.Set.Find(o.GVR.GroupResource()); ok && role == resources.Main && r.Controls && o.Unselected {
		s.passes.owe(work.Debt{All: true})
	}
}

// arrived drops the family of an object that has reached its place or no longer exists. The lock must be held.
func (s *state) arrived(id feed.ID) {
	if uid, ok := s.families.byName[id]; ok {
		s.table.Scattered(uid)
		s.families.members -= len(s.families.byUID[uid].members)
		delete(s.families.byUID, uid)
		delete(s.families.byName, id)
	}
}
