package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// looksFor is the kind of objects that a source looks for.
type looksFor string

const (
	// forUnassigned is a stream of the objects without an available shard. forDraining is a stream of the objects that are
	// being drained.
	forUnassigned looksFor = "unassigned"
	forDraining   looksFor = "draining"
	// forUnselected is a stream of the objects with a shard that the selector of the ring does not select.
	forUnselected looksFor = "unselected"
	// forMisplaced is a pass over labeled objects. forFollowers is a list of the objects that follow objects on the move.
	forMisplaced looksFor = "labelled"
	forFollowers looksFor = "followers"
)

// sourceID identifies a source by what it looks for, and where. The zero value identifies no source.
type sourceID struct {
	looksFor looksFor
	work.Place
	// selector selects the objects further; empty if there is only one such source.
	selector string
}

// newTarget represents the sources of a target until they follow it.
var newTarget = sourceID{looksFor: "new target"}

func idOf(what looksFor, r resources.Resource) sourceID {
	return sourceID{looksFor: what, Place: work.Place{Of: r.GroupResource()}}
}

// String returns the name of the source, from which its pauses are derived.
func (id sourceID) String() string {
	return fmt.Sprintf("%s %s in %q with %q", id.looksFor, id.Of, id.Namespace, id.selector)
}

// sources are the streams that follow the current target. Only one goroutine may use them.
type sources struct {
	e      *Engine
	all    map[sourceID]*following
	target *Target
	// lasting are the sources that the target needs, whatever happens to objects.
	lasting map[sourceID]feed.Scope
}

// following is a running stream.
type following struct {
	scope  feed.Scope
	stream *feed.Stream
	end    func()
}

func newSources(e *Engine) *sources { return &sources{e: e, all: map[sourceID]*following{}} }

// wanted returns the sources that a target needs, whatever happens to objects.
func (s *sources) wanted(t *Target) map[sourceID]feed.Scope {
	wanted := map[sourceID]feed.Scope{}
	label, available := s.e.Objects.ShardLabel(), t.View.AvailableShards()

	for _, r := range everything(t.Set) {
		wanted[idOf(forDraining, r)] = feed.Scope{GVR: r.GVR, Selector: s.e.Objects.DrainLabel()}

		if t.Leaving[r.GroupResource()] {
			continue // the pass frees all of them
		}

		for _, not := range r.Unselecting() {
			id := idOf(forUnselected, r)
			id.selector = not
			wanted[id] = feed.Scope{GVR: r.GVR, Selector: label + "," + not}
		}

		if len(available) == 0 {
			continue // no shard could get the objects
		}

		id := idOf(forUnassigned, r)
		foreign := fmt.Sprintf("%s notin (%s)", label, strings.Join(available, ","))
		scope := feed.Scope{GVR: r.GVR, Selector: strings.TrimSuffix(foreign+","+r.Selector, ",")}

		switch {
		case !r.Namespaced:
			wanted[id] = scope
		case t.Narrow.Single:
			for _, id.Namespace = range t.Narrow.Only {
				scope.Namespace = id.Namespace
				wanted[id] = scope
			}
		default:
			scope.Fields = t.Narrow.Fields()
			wanted[id] = scope
		}
	}

	return wanted
}

// follow makes the sources follow the current target, and find what follows the objects that wait for it. Sources that
// also serve the new target continue: a stream of which only the selector has changed continues from its position with
// the new selector, unless shards were lost.
func (s *sources) follow(ctx context.Context) {
	t := s.e.Target()
	if t == nil {
		return
	}

	if t != s.target {
		s.target, s.lasting = t, s.wanted(t)
	}

	wanted, changed := maps.Clone(s.lasting), sets.New[sourceID]()
	again := s.seek(wanted)

	for _, id := range inOrder(s.all) {
		f, scope := s.all[id], wanted[id]

		switch {
		case scope.GVR != f.scope.GVR || scope.Fields != f.scope.Fields: // or it is not wanted anymore
			s.drop(id, f)
		case scope.Selector != f.scope.Selector:
			f.scope.Selector = scope.Selector
			changed.Insert(id)
		}
	}

	s.ask(changed, again) // only those that run: the others list everything anyway

	for _, id := range inOrder(wanted) {
		if s.all[id] == nil {
			s.start(ctx, id, wanted[id])
		}
	}

	s.e.update(func(time.Time) {
		if s.e.unlisted[newTarget] && s.e.target.Same(t) {
			delete(s.e.unlisted, newTarget)
			notify(s.e.seeks)
		}
	})
}

// ask makes streams continue with their selectors if these have changed, and requests the lists that are owed, among
// them those of again.
func (s *sources) ask(changed, again sets.Set[sourceID]) {
	s.e.update(func(time.Time) {
		relist := s.e.relist && s.e.target == s.target // otherwise, the streams have to follow another target first

		for id, f := range s.all {
			list := again.Has(id) || id.looksFor == forFollowers && changed.Has(id)

			leaves := id.looksFor == forDraining && s.target.Leaving[id.Of] // no pass sees a drain label alone
			if relist && (id.looksFor == forUnassigned || leaves) {
				list = true

				if _, listing := s.e.unlisted[id]; !listing { // it may still be the first one
					s.e.unlisted[id] = false
				}
			}

			if list || changed.Has(id) {
				f.stream.Select(f.scope.Selector, list)
			}
		}

		if relist {
			s.e.lost, s.e.relist = sets.New[string](), false
		}
	})
}

// start starts a source.
func (s *sources) start(ctx context.Context, id sourceID, scope feed.Scope) {
	var to feed.Sink = &sink{e: s.e, id: id}

	s.e.update(func(time.Time) {
		if id.looksFor == forFollowers {
			to = &followed{e: s.e, id: id, watch: s.e.table.Watch(id.Place)}
		} else {
			s.e.unlisted[id] = true
		}
	})

	ctx, cancel := context.WithCancel(ctx)
	f := &following{scope: scope, stream: feed.NewStream(s.e.Objects, scope, to, s.e.Clock)}
	s.all[id] = f

	var wg sync.WaitGroup

	wg.Go(func() { f.stream.Run(ctx) })

	f.end = func() {
		cancel()
		wg.Wait()
	}
}

func (s *sources) drop(id sourceID, f *following) {
	f.end()
	delete(s.all, id)

	s.e.update(func(time.Time) {
		delete(s.e.failures, id)
		delete(s.e.unlisted, id)

		if id.looksFor == forFollowers {
			s.e.table.Unwatch(id.Place)
		}
	})
}

func (s *sources) stop() {
	for _, f := range s.all {
		f.end()
	}
}

// inOrder returns the IDs of sources in an order that can be replayed.
func inOrder[T any](all map[sourceID]T) []sourceID {
	return slices.SortedFunc(maps.Keys(all), func(a, b sourceID) int { return strings.Compare(a.String(), b.String()) })
}

func everything(set *resources.Set) []resources.Resource {
	return append(slices.Clone(set.Main()), set.Controlled()...)
}

// observe records an object that a source has seen, when there is room, and completes the sight. If the check of its
// namespace or of its owner fails, the object counts as out of place: a worker will check again.
func (e *Engine) observe(ctx context.Context, seen sight) sight {
	e.mover.Lookup.Ancestors.Saw(seen.object.GVR.GroupResource(), seen.object.UID, seen.object.Controller)

	full := e.table.Full
	if seen.awaited {
		full = e.table.FullOfFollowers
	}

	room := func() bool {
		_, known := e.table.Has(seen.object.ID)

		return known || !full() || !e.concerns(seen)
	}

	for {
		t := e.Target()
		seen.at, seen.err = t.Assess(ctx, e.mover.Lookup, seen.object)
		seen.object.Above = seen.at.Above

		if !seen.at.InPlace && (seen.held.keep(ctx, seen.object) || !e.await(ctx, e.room, room)) || e.saw(t, &seen) {
			return seen
		}
	}
}

// troubled records that a source cannot be read; with a nil error, that it can be read again.
func (e *Engine) troubled(id sourceID, err error) {
	if err != nil && e.Trouble != nil {
		defer e.Trouble() // without the lock
	}

	e.mu.Lock()
	defer e.mu.Unlock()

	switch before, failed := e.failures[id]; {
	case err == nil && failed:
		delete(e.failures, id)
		e.changed()
	case err != nil && before != err.Error():
		e.failures[id] = err.Error()
		e.changed()
	}
}

// sink receives what a stream of a target shows: objects without an available shard, objects that carry the drain
// label, or objects with a shard that the selector of the ring excludes. The latter may come back, or lose their shard:
// then, an obligation reads its object again.
type sink struct {
	e  *Engine
	id sourceID
	// listed are the objects of the current list that are out of their place; nil between lists. held holds them back if
	// they have no available shard.
	listed sets.Set[feed.ID]
	held   *holding
	// again reports whether a list was completed before.
	again bool
}

func (s *sink) Begin() {
	s.listed = sets.New[feed.ID]()

	if s.id.looksFor == forUnassigned {
		s.held = s.e.hold(urgentHeld) // what the last list has found and not reported, this one finds again
	}

	s.e.update(func(time.Time) { s.e.unlisted[s.id] = !s.again })
}

func (s *sink) Present(ctx context.Context, o feed.Object) {
	seen := s.e.observe(ctx, sight{object: o, watched: s.id.looksFor == forDraining, held: s.held})
	if s.listed != nil && !seen.at.InPlace {
		s.listed.Insert(o.ID)
	}
}

func (s *sink) Gone(id feed.ID, resourceVersion string) {
	s.e.update(func(now time.Time) {
		if s.id.looksFor == forDraining {
			s.e.table.Released(now, id, resourceVersion)
		} else {
			s.e.table.Unsure(id, resourceVersion)
		}
	})
}

// Listed makes objects be read that should be in the list, and are not: they may have been assigned or released while
// no watch was open, and no event will report that.
func (s *sink) Listed(ctx context.Context) {
	s.held.release(ctx)
	s.held = nil

	missing := func(id feed.ID) bool {
		return id.GVR.GroupResource() == s.id.Of && !s.listed.Has(id) &&
			(s.id.Namespace == "" || s.id.Namespace == id.Namespace)
	}
	if s.id.looksFor != forUnselected {
		s.e.update(func(time.Time) { s.e.table.Unlisted(s.id.looksFor == forDraining, missing) })
	}

	s.listed, s.again = nil, true
	s.e.listed(s.id)
}

func (s *sink) Failed(err error) {
	if err != nil {
		s.listed = nil
		s.e.listed(s.id) // when the list will succeed is unknown
	}

	s.e.troubled(s.id, err)
}
