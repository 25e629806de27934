package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/placement"
)

// namedAtOnce is how many shards one list names. A name has up to 63 characters, and the API server accepts at most 1 MB of
// names.
const namedAtOnce = 1000

// sources are the streams and lists that follow the current target. Only one goroutine may use them.
type sources struct {
	e     *Engine
	all   map[sourceID]*following
	lists map[sourceID]*lister
}

// following is a running source.
type following struct {
	scope  feed.Scope
	stream *feed.Stream // nil for a lister
	end    func()
}

func newSources(e *Engine) *sources {
	return &sources{e: e, all: map[sourceID]*following{}, lists: map[sourceID]*lister{}}
}

// run starts a source.
func (s *sources) run(ctx context.Context, id sourceID, f *following, run func(context.Context)) {
	ctx, cancel := context.WithCancel(ctx)

	var wg sync.WaitGroup

	wg.Go(func() { run(ctx) })

	f.end = func() {
		cancel()
		wg.Wait()
	}
	s.all[id] = f
}

// follow makes the sources follow a target. Sources that also serve the new target continue: a stream of which only the
// selector has changed continues from its position with the new selector. The objects of lost shards are listed.
func (s *sources) follow(ctx context.Context, t *Target) {
	wanted := sets.New[sourceID]()
	ask := s.owed()

	for _, r := range everything(t.Set) {
		id := idOf(forDraining, r)
		wanted.Insert(id)
		s.stream(ctx, id, feed.Scope{GVR: r.GVR, Selector: s.e.Objects.DrainLabel()}, &drains{e: s.e, id: id, gvr: r.GVR})

		if !t.Leaving[r.GroupResource()] { // the pass frees all of them
			s.unselected(ctx, r, wanted)
		}

		available := t.View.AvailableShards()
		if len(available) == 0 || t.Leaving[r.GroupResource()] {
			continue // no shard could get the objects, or the pass frees them
		}

		scope := feed.Scope{GVR: r.GVR, Selector: and(selector(s.e.Objects.ShardLabel(), "notin", available), r.Selector)}
		for _, scope := range narrowed(scope, r, t.Narrow) {
			id := idOf(forUnassigned, r).in(scope.Namespace)
			wanted.Insert(id)
			s.stream(ctx, id, scope, &unassigned{e: s.e, id: id, gvr: r.GVR})
		}

		wanted.Insert(s.list(ctx, r))
	}

	for id, f := range s.all {
		if !wanted.Has(id) {
			s.drop(id, f)
		}
	}

	ask()
	s.e.followed(t)
}

// unselected ensures that streams run for the objects of the resource that have a shard and that the selector of the ring does not select, and adds them
// to the wanted sources.
func (s *sources) unselected(ctx context.Context, r resources.Resource, wanted sets.Set[sourceID]) {
	for _, not := range r.Unselecting() {
		id := idOf(forUnselected, r)
		id.selector = not
		wanted.Insert(id)
		s.stream(ctx, id, feed.Scope{GVR: r.GVR, Selector: and(s.e.Objects.ShardLabel(), not)}, &unselected{e: s.e, id: id})
	}
}

// narrowed returns the scopes in which the objects of a resource are watched.
func narrowed(scope feed.Scope, r resources.Resource, n placement.Narrowing) []feed.Scope {
	if !r.Namespaced {
		return []feed.Scope{scope}
	}

	if !n.Single {
		scope.Fields = n.Fields()
		return []feed.Scope{scope}
	}

	scopes := make([]feed.Scope, len(n.Only))
	for i, namespace := range n.Only {
		scopes[i] = scope
		scopes[i].Namespace = namespace
	}

	return scopes
}

// stream ensures that a stream runs with the given scope.
func (s *sources) stream(ctx context.Context, id sourceID, scope feed.Scope, sink feed.Sink) {
	if f, ok := s.all[id]; ok {
		if f.scope.GVR == scope.GVR && f.scope.Fields == scope.Fields {
			if f.scope.Selector != scope.Selector {
				f.scope.Selector = scope.Selector
				f.stream.Select(scope.Selector)
			}

			return
		}

		s.drop(id, f)
	}

	f := &following{scope: scope, stream: feed.NewStream(s.e.Objects, scope, sink, s.e.Clock)}
	s.e.listing(id)
	s.run(ctx, id, f, f.stream.Run)
}

// list ensures that a lister for the objects of lost shards runs.
func (s *sources) list(ctx context.Context, r resources.Resource) sourceID {
	id := idOf(forLost, r)

	if f, ok := s.all[id]; ok {
		if f.scope.GVR == r.GVR {
			return id
		}

		s.drop(id, f)
	}

	l := &lister{e: s.e, id: id, gvr: r.GVR, pending: sets.New[string](), wake: make(chan struct{}, 1)}
	s.lists[id] = l
	s.run(ctx, id, &following{scope: feed.Scope{GVR: r.GVR}}, l.run)

	return id
}

// owed takes what is owed, and returns a function that requests the lists from the sources. A stream that starts between the
// two calls lists everything anyway.
func (s *sources) owed() (ask func()) {
	shards, relist := s.e.takeLost()
	running := maps.Clone(s.all)

	return func() {
		for _, l := range s.lists {
			if len(shards) > 0 {
				l.add(shards)
			}
		}

		for id, f := range s.all {
			if relist && running[id] == f && id.looksFor == forUnassigned {
				s.e.listing(id)
				f.stream.Relist()
			}
		}

		s.e.listed(beingAsked)
	}
}

func (s *sources) drop(id sourceID, f *following) {
	f.end()
	delete(s.all, id)
	delete(s.lists, id)
	s.e.forget(id)
}

func (s *sources) stop() {
	for _, f := range s.all {
		f.end()
	}
}

func everything(set *resources.Set) []resources.Resource {
	return append(slices.Clone(set.Main()), set.Controlled()...)
}

// and returns a selector with the requirements of both; the second may be empty.
func and(selector, other string) string {
	if other == "" {
		return selector
	}

	return selector + "," + other
}

func selector(label, operator string, values []string) string {
	return fmt.Sprintf("%s %s (%s)", label, operator, strings.Join(values, ","))
}
