package engine

import (
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// family is an object that others follow. They move to its next shard before it does. No shard works on it, or it follows an
// object that is in its place.
type family struct {
	owner feed.ID
	// to is its next shard.
	to string
	// moved is when one of the others has last reached its place, or when they were last redirected.
	moved time.Time
	// number is its number among all families, in the order in which they began to wait for their followers. since is when
	// it began to.
	number int
	since  time.Time
	// recorded is when the followers were recorded that watches had shown before; zero if they were not. found reports
	// whether all followers have been.
	recorded time.Time
	found    bool
	// worked reports whether a shard may have worked on the object since, and may have created more followers.
	worked bool
	// handover contains the resource versions of the followers that have reached the next shard.
	handover contract.Handover
}

// families are the families on the move, by the UID and by the name of the object that the others follow.
type families struct {
	byUID  map[types.UID]*family
	byName map[feed.ID]types.UID
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

// Gathered implements [move.Obligations].
func (s *state) Gathered(o feed.Object, to string) (h contract.Handover, since time.Time, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	uid, f := s.familyOf(o)
	begins := f == nil

	switch {
	case begins && o.Controller != nil && !s.ancestors.Between(o.GVR.GroupResource()):
		return nil, time.Time{}, true // nothing has ever followed an object of this kind
	case begins:
		uid, f = o.UID, &family{owner: o.ID}
		s.arrived(o.ID) // another object of that name
		s.families.byUID[uid], s.families.byName[o.ID] = f, uid
		s.table.Given(o)
	case uid == o.UID && f.owner != o.ID: // the resource is served in another version
		delete(s.families.byName, f.owner)
		f.owner, s.families.byName[o.ID] = o.ID, uid
	}

	if begins || f.to != to {
		f.to, f.handover, f.recorded, f.found, f.moved = to, contract.Handover{}, time.Time{}, false, s.clock.Now()

		// What was proven stays proven, unless more followers may exist.
		if begins || f.worked || !s.followers.indexed(s.target.Set.Controlled(), f.owner.Namespace) {
			s.seek(f)
		}

		s.table.Scattered(uid)
		s.table.Redirect(uid)
		s.changed()
	}

	n, known := s.table.Followers(o)
	if !known {
		notify(s.gather)
	}

	return maps.Clone(f.handover), f.moved, known && n == 0
}

// seek makes all followers of a family be found again. The lock must be held.
func (s *state) seek(f *family) {
	s.followers.begun++
	f.number, f.since, f.recorded, f.found, f.worked = s.followers.begun, s.clock.Now(), time.Time{}, false, false
}

// Given implements [move.Obligations].
func (s *state) Given(owner feed.ID, uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.families.byUID[uid] != nil && s.families.byName[owner] == uid
}

// Writing implements [move.Obligations].
func (s *state) Writing(of schema.GroupResource) (written func(version string)) {
	s.mu.Lock()
	defer s.mu.Unlock()

	begun := s.followers.begun

	return func(version string) {
		s.mu.Lock()
		defer s.mu.Unlock()

		if s.followers.wrote(of, begun, version) {
			notify(s.gather)
		}
	}
}

// follows records an object that follows others. The families that wait for it learn the version at which it arrived. The lock
// must be held.
func (s *state) follows(o feed.Object) {
	if f := s.families.byUID[o.UID]; f != nil && s.target != nil && s.target.View.Works(o.Shard) {
		f.worked = true
	}

	for _, uid := range o.Lineage() {
		if f := s.families.byUID[uid]; f != nil && f.to == o.Shard && !o.Draining {
			f.handover.Reached(o.GVR.GroupResource(), o.ResourceVersion)
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
		delete(s.families.byUID, uid)
		delete(s.families.byName, id)
	}
}

// ungathered returns the families whose followers are not all known, and needs watches for them. It drops families whose
// object is no longer an obligation. The lock must be held.
func (s *state) ungathered(now time.Time) (missing []types.UID) {
	for uid, f := range s.families.byUID {
		owner, is := s.table.Has(f.owner)
		if !is {
			s.arrived(f.owner)
			continue
		}

		if _, known := s.table.Followers(owner); known {
			f.found = true
			continue
		}

		if f.found { // some were dropped from the table
			s.seek(f)
		}

		s.followers.needed[f.owner.Namespace] = now

		missing = append(missing, uid)
	}

	slices.Sort(missing)

	return missing
}

// find finds the followers of families. It opens and closes watches, records what these have shown before a family began, and
// begins lists where nothing proves that they have shown everything. It returns when it has to be called again, unless
// something is reported before; zero if never.
func (e *Engine) find(ctx context.Context, s *sources) (next time.Time) {
	if e.Target() == nil {
		return time.Time{}
	}

	e.mu.Lock()
	missing, among := e.ungathered(e.clock.Now()), e.target.Set.Controlled()
	wanted, next := e.followers.wanted(e.clock.Now(), among, e.hasFew())
	e.mu.Unlock()

	s.followers(ctx, wanted)

	if !e.record(ctx, missing, among) {
		next = e.clock.Now().Add(proofWithin)
	}

	lists, at := e.found(missing, among)
	for _, id := range lists {
		s.all[id].stream.Relist()
	}

	if next.IsZero() || !at.IsZero() && at.Before(next) {
		next = at
	}

	return next
}

// record records the followers of new families that watches have shown before. It returns false if that has to be repeated.
func (e *Engine) record(ctx context.Context, missing []types.UID, among []resources.Resource) bool {
	var (
		fresh []*family
		all   []feed.Object
	)

	e.mu.Lock()

	for _, uid := range missing {
		f := e.families.byUID[uid]
		if f == nil || !f.recorded.IsZero() || !e.followers.complete(among, f.owner.Namespace, e.clock.Since(f.since) >= withoutThem) {
			continue
		}

		f.recorded = e.clock.Now()
		fresh, all = append(fresh, f), append(all, e.followers.below(uid)...)
	}

	e.mu.Unlock()

	for _, o := range all {
		if e.gatherOne(ctx, o) == nil {
			continue
		}

		e.update(func(time.Time) {
			for _, f := range fresh {
				f.recorded = time.Time{}
			}
		})

		return false
	}

	return true
}

// found records the families of which all followers have been shown. It returns the watches that have to list again, and when
// to ask again; zero if never.
func (s *state) found(missing []types.UID, among []resources.Resource) (lists []sourceID, next time.Time) {
	later := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}

	s.update(func(now time.Time) {
		for _, uid := range missing {
			f := s.families.byUID[uid]
			if f == nil {
				continue
			}

			without := now.Sub(f.since) >= withoutThem
			all := !f.recorded.IsZero() && (without || !s.unseen(among) || s.table.Full())

			for _, r := range among {
				w := s.followers.over(r, f.owner.Namespace)
				if w != nil && (w.proven >= f.number || without && w.failing) {
					continue
				}

				if all = false; w == nil || w.listing || f.recorded.IsZero() {
					continue
				}

				if at := w.again(f.recorded, s.table.Ready() > 0); at.After(now) {
					later(at)
				} else {
					w.listing = true

					lists = append(lists, s.followers.at(r, f.owner.Namespace))
				}
			}

			if all {
				s.table.Gathered(uid)
			} else if later(now.Add(proofWithin)); !without {
				later(f.since.Add(withoutThem))
			}
		}

		s.ungathered(now) // families that were found with others are found, too

		if s.followers.complete(among, "", false) {
			s.table.Pause(now, time.Time{})
		}
	})

	return lists, next
}

// gatherOne records an object if a family waits for it.
func (e *Engine) gatherOne(ctx context.Context, o feed.Object) (err error) {
	if o.Controller == nil {
		return nil
	}

	if !e.wait(feed.Lineage{o.Controller.UID}) {
		if o.Above, err = e.Target().Above(ctx, e.lookup(), o); err != nil {
			return err
		}
	}

	if !e.wait(o.Lineage()) {
		return nil
	}

	room := func() bool { return !e.table.FullOfFollowers() }
	if at, inPlace := e.observe(ctx, sight{object: o, room: room}); at.Belongs || !inPlace {
		o.Above = at.Above

		e.mu.Lock()
		defer e.mu.Unlock()

		e.follows(o)
	}

	return nil
}

// wait reports whether one of these objects waits for its followers, or did so lately.
func (s *state) wait(these feed.Lineage) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return slices.ContainsFunc(these[:], func(uid types.UID) bool { return s.families.byUID[uid] != nil })
}

// need opens the watches of what follows an object that is about to lose its shard. The lock must be held.
func (s *state) need(id feed.ID, now time.Time) {
	if r, _, ok := s.target.Set.Find(id.GVR.GroupResource()); ok && r.Controls {
		s.followers.needed[id.Namespace] = now
		notify(s.gather)
	}
}

// awaitFollowers lets no object be drained until all followers are watched, if a shard stops: an object that is released
// earlier would be without a shard until a watch has listed them. It waits for a second at most, because the shard waits
// for its drains for three. The lock must be held.
func (s *state) awaitFollowers(now time.Time) {
	if among := s.target.Set.Controlled(); s.target.View.Stops() && len(among) > 0 && s.hasFew() {
		s.followers.needed[""] = now
		if !s.followers.complete(among, "", false) {
			s.table.Pause(now, now.Add(drainsWait))
		}
	}

	notify(s.gather)
}

// unseen reports whether objects of the resources may exist that have no shard, follow others, and were not seen yet. This is
// the case until the streams of such objects have completed their first list. The lock must be held.
func (s *state) unseen(of []resources.Resource) bool {
	for id := range s.unlisted {
		among := func(r resources.Resource) bool { return r.GroupResource() == id.resource }
		if id == newTarget || id.looksFor == forUnassigned && slices.ContainsFunc(of, among) {
			return true
		}
	}

	return false
}

// few reports whether the ring is known to have few objects.
func (s *state) few() bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.hasFew()
}

// hasFew is few with the lock held.
func (s *state) hasFew() bool { return s.passes.objects > 0 && s.passes.objects <= fewObjects }
