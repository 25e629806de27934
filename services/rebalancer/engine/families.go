package engine

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

const (
	// believed is for how long what was found is believed to be all that follows an object, if that is to go elsewhere; maxMembers is up to how
	// many that follow are kept for it, of all objects: 5 MB.
	believed   = 30 * time.Second
	maxMembers = 10_000
)

// family is an object that others follow: they go to its next shard before it does. Nobody works on it; or it follows an object itself that is in
// its place.
type family struct {
	owner objects.ID
	// to is where it goes; since is when it was given up.
	to    string
	since time.Time
	// members are those that follow, as they were seen last; nil if they are not kept. complete is when all were looked for.
	members  map[objects.ID]objects.Object
	complete time.Time
	// handover says when those that follow have come to where it goes; asked counts how often they have to be looked for anew.
	handover v1alpha1.Handover
	asked    int
}

// families are those on the move, by the UID of the object that the others follow, and by its name.
type families struct {
	byUID  map[types.UID]*family
	byName map[objects.ID]types.UID
	// members is how many are kept.
	members int
}

func newFamilies() families {
	return families{byUID: map[types.UID]*family{}, byName: map[objects.ID]types.UID{}}
}

// familyOf returns the family of an object, or of one that it follows; the lock is held. It is nil if there is none.
func (s *state) familyOf(o objects.Object) (types.UID, *family) {
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

// redirect has all that follows an object go where that goes now; the lock is held. Where that is not known, it is looked for.
func (s *state) redirect(uid types.UID, f *family) {
	f.handover = v1alpha1.Handover{}

	switch {
	case f.members == nil:
		f.asked++ // what a list under way has shown is not known any more
		s.table.Scattered(uid)
	case s.clock.Since(f.complete) > believed:
		s.table.Scattered(uid)
	}

	for _, id := range slices.SortedFunc(maps.Keys(f.members), objects.Compare) { // what is seen in an order of its own cannot be seen again
		o := f.members[id]
		if o.Shard == f.to && !o.Draining {
			f.handover.Reached(o.GVR.GroupResource(), o.ResourceVersion)
		} else {
			s.table.See(s.clock.Now(), o, false)
		}
	}

	s.table.Redirect(uid)
}

// follows takes note of an object that follows others; the lock is held. Those of them that wait for it will know from when on.
func (s *state) follows(o objects.Object) {
	for _, uid := range o.Lineage() {
		if f := s.families.byUID[uid]; f != nil {
			s.families.keep(f, o)
		}
	}
}

// keep takes note of an object that follows the family's.
func (all *families) keep(f *family, o objects.Object) {
	if f.to == o.Shard && !o.Draining {
		f.handover.Reached(o.GVR.GroupResource(), o.ResourceVersion)
	}

	known, kept := f.members[o.ID]

	switch {
	case f.members == nil, kept && objects.Older(o.ResourceVersion, known.ResourceVersion):
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

// ended forgets the family of an object that is no obligation any more; the lock is held. What was seen of an object may be old: the table knows.
func (s *state) ended(id objects.ID) {
	if _, still := s.table.Has(id); !still {
		s.arrived(id)
	}
}

// arrived takes note that an object is where it belongs, whom others follow, or is no more; the lock is held.
func (s *state) arrived(id objects.ID) {
	if uid, ok := s.families.byName[id]; ok {
		s.table.Scattered(uid)
		s.families.members -= len(s.families.byUID[uid].members)
		delete(s.families.byUID, uid)
		delete(s.families.byName, id)
	}
}
