package engine

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

const (
	// gatherAtOnce is how many lists run at a time.
	gatherAtOnce = 4
	// gatherWith is how long a search waits for more objects whose followers have to be found. It waits up to gatherBusy
	// while every worker is busy. One search then serves all of them. After a search, the next one waits for the CPU time
	// that the search took, and up to gatherShare times as long while every worker is busy. CPU time is used, because other
	// load makes a search last longer.
	gatherWith  = 2 * time.Millisecond
	gatherBusy  = 250 * time.Millisecond
	gatherShare = 16
	// withoutThem is how long a search waits for a resource that cannot be listed, or whose objects without a shard have not
	// all been seen yet. After that, it continues without them, because a shard has to work on the object.
	withoutThem = 10 * time.Second
	// drainsWait is how long no object is drained at most because a shard stops and the watch of the followers has not begun.
	drainsWait = time.Second
	// fewObjects is the number of objects of a ring up to which lists use pages; docs/performance.md compares the cost of
	// pages and streams.
	fewObjects = 20_000
	// fewNamespaces is the number of namespaces up to which each is listed separately: a list costs the API server a
	// millisecond, and a list of a million objects costs as much as a pass.
	fewNamespaces = 100
)

// search contains the objects whose followers a search has to find, by UID.
type search map[types.UID]sought

// sought is a family, with the value of its asked when the search began.
type sought struct {
	*family

	begun int
}

// has reports whether the search is about an object.
func (s search) has(uid types.UID) bool { return s[uid].family != nil }

// ungathered returns the families whose followers are not all known. It drops families whose object is no longer an obligation.
func (s *state) ungathered() search {
	s.mu.Lock()
	defer s.mu.Unlock()

	missing := search{}

	for uid, f := range s.families.byUID {
		owner, known := s.table.Has(f.owner)
		if !known {
			s.arrived(f.owner)
			continue
		}

		if _, known := s.table.Followers(owner); !known {
			missing[uid] = sought{f, f.asked}
		}
	}

	return missing
}

// gathered records that all followers of the objects were found.
func (s *state) gathered(found search) {
	s.update(func(now time.Time) {
		for _, uid := range slices.Sorted(maps.Keys(found)) {
			f := found[uid]
			if s.families.byUID[uid] == f.family && f.asked == f.begun { // it still waits for the same search
				f.complete = now
				s.table.Gathered(uid)
			}
		}
	})
}

// gatherer finds the followers of objects whenever an object waits for that, until ctx ends: with searches, and, if one search is not enough,
// with a watch.
func (e *Engine) gatherer(ctx context.Context) {
	var (
		next     = feed.Attempts("followers " + e.Ring)
		kin      = kinWatch{e: e}
		searches = 0
	)

	defer kin.end()

	for {
		var calm time.Duration
		if searches > 0 || kin.stop != nil {
			calm = kinFor
		}

		if !e.awaitGather(ctx, calm) {
			if ctx.Err() != nil {
				return
			}

			kin.end()

			searches = 0

			continue
		}

		if (searches >= e.Limits.Searches || e.stops()) && e.few() {
			kin.follow(ctx)
		}

		e.drainsMayBegin()

		if e.gatherKin(ctx) || len(e.ungathered()) == 0 {
			e.found()
			continue
		}

		searches++

		e.withOthers(ctx, gatherWith, gatherBusy)

		select {
		case <-e.gather: // this search includes all objects that came meanwhile
		default:
		}

		pause := next.Next()

		if seen, again := e.gatherAll(ctx); again {
			notify(e.gather)
			e.pause(ctx, pause)
		} else {
			next.Reset()

			if searches < e.Limits.Searches || !e.few() { // otherwise, the next objects need no search
				cost := time.Duration(seen) * perObject
				e.withOthers(ctx, cost, gatherShare*cost)
			}
		}
	}
}

// found records that no object waits for its followers. The watch has found what a search could not list, and no search will list it again.
func (s *state) found() {
	s.mu.Lock()
	defer s.mu.Unlock()

	before := len(s.failures)
	maps.DeleteFunc(s.failures, func(id sourceID, _ string) bool { return id.looksFor == forFollowers })

	if len(s.failures) < before {
		s.changed()
	}
}

// stops reports whether a shard stops that still works: all its objects move soon, one by one.
func (s *state) stops() bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.target != nil && s.target.View.Stops()
}

// awaitKin lets no object be drained until the gatherer watches the followers, if a shard stops: an object that is released earlier would be
// without a shard until the watch has listed all of them. It waits for a second at most, because the shard waits for its drains for three. The
// lock must be held.
func (s *state) awaitKin(now time.Time) {
	controlled := s.target.Set.Controlled()
	if s.target.View.Stops() && len(controlled) > 0 && s.hasFew() && !s.kin.watched(controlled) {
		s.table.Pause(now, now.Add(drainsWait))
	}

	notify(s.gather)
}

// drainsMayBegin ends what awaitKin has begun.
func (s *state) drainsMayBegin() {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.table.Pause(s.clock.Now(), time.Time{}) {
		s.changed()
	}
}

// awaitGather waits until objects wait for their followers. It returns false if ctx has ended, or if the time has passed; 0 is no limit.
func (e *Engine) awaitGather(ctx context.Context, within time.Duration) bool {
	var passed <-chan time.Time

	if within > 0 {
		timer := e.Clock.NewTimer(within)
		defer timer.Stop()

		passed = timer.C()
	}

	select {
	case <-ctx.Done():
		return false
	case <-passed:
		return false
	case <-e.gather:
		return true
	}
}

// gatherKin finds the followers of the objects that wait for that with the watch. It returns false if a search has to find them, because there
// is no watch, or because the watch is late.
func (e *Engine) gatherKin(ctx context.Context) bool {
	for ctx.Err() == nil {
		fresh, watched := e.unknown()
		if !watched {
			return false
		}

		for _, o := range fresh {
			if e.gatherOne(ctx, o, e.waits) != nil {
				return false
			}
		}

		since := e.shown()
		if since.IsZero() {
			return true
		}

		left := e.proofWithin() - e.Clock.Since(since)
		if left <= 0 {
			return false
		}

		e.awaitGather(ctx, left)
	}

	return false
}

// unknown returns the followers of the families that the watch has shown and that were not recorded yet. watched is false if there is no watch.
func (s *state) unknown() (all []feed.Object, watched bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if controlled := s.target.Set.Controlled(); !s.kin.watched(controlled) || s.unseen(controlled) {
		return nil, false
	}

	for _, uid := range slices.Sorted(maps.Keys(s.families.byUID)) {
		if f := s.families.byUID[uid]; f.known.IsZero() {
			f.known = s.clock.Now()
			all = append(all, s.kin.below(uid)...)
		}
	}

	return all, true
}

// shown records the families of which the watch has shown all followers. It returns since when the first of the others waits for that; zero if
// there are no others.
func (s *state) shown() (since time.Time) {
	missing := s.ungathered()

	s.mu.Lock()

	watched := s.kin.watched(s.target.Set.Controlled())
	maps.DeleteFunc(missing, func(_ types.UID, f sought) bool {
		if watched && !f.known.IsZero() && s.kin.proven(f.family) {
			return false
		}

		if began := cmp.Or(f.known, s.clock.Now()); since.IsZero() || began.Before(since) {
			since = began
		}

		return true
	})
	s.mu.Unlock()

	if len(missing) > 0 {
		s.gathered(missing)
	}

	return since
}

// withOthers pauses for the least time, and for up to the most while every worker is busy: the objects that are found could
// not move earlier anyway.
func (e *Engine) withOthers(ctx context.Context, least, most time.Duration) {
	e.pause(ctx, least)

	for waited := least; waited < most && ctx.Err() == nil && e.queued(); waited += gatherWith {
		e.pause(ctx, gatherWith)
	}
}

// gatherAll searches once for the followers of all objects that wait for that. It returns how many objects it saw, and whether
// the search has to be repeated.
func (e *Engine) gatherAll(ctx context.Context) (seen int, again bool) {
	controlled := e.Target().Set.Controlled()
	e.awaitFor(ctx, withoutThem, func() bool { return !e.unseen(controlled) || e.table.Full() })

	missing := e.ungathered()

	var (
		lists = errgroup.Group{}
		errs  = make([]error, len(controlled))
		mu    sync.Mutex // guards errs and seen
	)

	lists.SetLimit(gatherAtOnce)

	for i, r := range controlled {
		for _, namespace := range namespacesOf(r, missing) {
			lists.Go(func() error {
				n, err := e.gatherOf(ctx, r, namespace, missing)

				mu.Lock()
				defer mu.Unlock()

				seen += n
				errs[i] = cmp.Or(errs[i], err)

				return nil
			})
		}
	}

	_ = lists.Wait() // errs contains the errors

	if ctx.Err() != nil {
		return seen, false
	}

	for i, r := range controlled {
		e.troubled(idOf(forFollowers, r), errs[i])
	}

	if again = errors.Join(errs...) != nil; again {
		for uid, f := range missing {
			if e.Clock.Since(f.since) < withoutThem {
				delete(missing, uid)
			}
		}
	}

	e.gathered(missing)

	return seen, again
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

// gatherOf searches one resource for objects that follow others, in one namespace or in all. It returns how many objects it
// saw.
func (e *Engine) gatherOf(ctx context.Context, r resources.Resource, namespace string, missing search) (seen int, err error) {
	scope := feed.Scope{GVR: r.GVR, Namespace: namespace, Selector: e.followers()}

	one := func(o feed.Object) error {
		seen++
		return errors.Join(e.gatherOne(ctx, o, missing.has), ctx.Err())
	}

	_, err = e.Objects.All(ctx, e.Clock, scope, one)

	return seen, err
}

// followers returns the selector of the objects among which followers are searched. In a ring that selects main objects, an object may come into the
// ring with followers that have no shard and that no source reports again.
func (e *Engine) followers() string {
	if e.Target().Set.Selector() != "" {
		return ""
	}

	return e.Objects.ShardLabel()
}

// few reports whether the ring is known to have few objects.
func (s *state) few() bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.hasFew()
}

// hasFew is few with the lock held.
func (s *state) hasFew() bool { return s.passes.objects > 0 && s.passes.objects <= fewObjects }

// gatherOne records an object if it follows an object of the search.
func (e *Engine) gatherOne(ctx context.Context, o feed.Object, missing func(types.UID) bool) (err error) {
	if e.ancestors.Saw(o.GVR.GroupResource(), o.UID, o.Controller); o.Controller == nil {
		return nil
	}

	if !missing(o.Controller.UID) {
		if o.Above, err = e.Target().Above(ctx, e.lookup(), o); err != nil {
			return err
		}
	}

	lineage := o.Lineage()
	if !slices.ContainsFunc(lineage[:], missing) || !e.awaited(o) {
		return nil
	}

	room := func() bool { return !e.table.FullOfFollowers() }
	if at, inPlace := e.observed(ctx, e.lookup(), sight{object: o, room: room}); at.Belongs || !inPlace {
		o.Above = at.Above

		e.mu.Lock()
		defer e.mu.Unlock()

		e.follows(o)
	}

	return nil
}

// awaited reports whether an object on the move waits for the object, and the object was not seen in a later version than the
// list shows.
func (s *state) awaited(o feed.Object) (waits bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, uid := range o.Lineage() {
		if f := s.families.byUID[uid]; f != nil {
			waits = true

			if feed.Older(o.ResourceVersion, f.members[o.ID].ResourceVersion) {
				return false
			}
		}
	}

	return waits
}

// namespacesOf returns the namespaces in which objects of the resource can follow others; "" means all namespaces.
func namespacesOf(r resources.Resource, missing search) []string {
	if len(missing) == 0 {
		return nil
	}

	names := sets.New[string]()
	for _, f := range missing {
		names.Insert(f.owner.Namespace)
	}

	if !r.Namespaced || names.Has("") || names.Len() > fewNamespaces {
		return []string{""}
	}

	return slices.Sorted(maps.Keys(names))
}
