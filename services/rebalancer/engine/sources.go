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
	"github.com/clusterring/clusterring/services/rebalancer/objects"
	"github.com/clusterring/clusterring/services/rebalancer/placement"
	"github.com/clusterring/clusterring/services/rebalancer/source"
)

// namedAtOnce is how many shards one list names. A name has up to 63 characters, and an API server takes no more than 1 MB of them.
const namedAtOnce = 1000

// Streams of unassigned objects are named after what they watch.
const (
	unassignedPrefix = "unassigned "
	inNamespace      = " in "
)

// sources are the streams and lists that follow the present target. One goroutine uses it.
type sources struct {
	e     *Engine
	all   map[string]*following
	lists map[string]*lister
}

// following is a source that runs.
type following struct {
	scope  objects.Scope
	stream *source.Stream // nil for a lister
	end    func()
}

func newSources(e *Engine) *sources {
	return &sources{e: e, all: map[string]*following{}, lists: map[string]*lister{}}
}

// run starts a source under a name.
func (s *sources) run(ctx context.Context, name string, f *following, run func(context.Context)) {
	ctx, cancel := context.WithCancel(ctx)

	var wg sync.WaitGroup

	wg.Go(func() { run(ctx) })

	f.end = func() {
		cancel()
		wg.Wait()
	}
	s.all[name] = f
}

// follow follows a target until there is another one. What serves it too goes on: a stream whose selector alone has changed takes the new
// one up where it is, and the objects of lost shards are listed.
func (s *sources) follow(ctx context.Context, t *Target) {
	wanted := sets.New[string]()
	ask := s.owed()

	for _, r := range everything(t.Set) {
		name := "draining " + r.GroupResource().String()
		wanted.Insert(name)
		s.stream(ctx, name, objects.Scope{GVR: r.GVR, Selector: s.e.Objects.DrainLabel()}, &drains{e: s.e, name: name, gvr: r.GVR})

		available := t.View.AvailableShards()
		if len(available) == 0 || t.Leaving[r.GroupResource()] {
			continue // nobody could get the objects, or the pass frees them
		}

		scope := objects.Scope{GVR: r.GVR, Selector: selector(s.e.Objects.ShardLabel(), "notin", available)}

		for _, scope := range narrowed(scope, r, t.Narrow) {
			name := unassignedPrefix + r.GroupResource().String()
			if scope.Namespace != "" {
				name += inNamespace + scope.Namespace
			}

			wanted.Insert(name)
			s.stream(ctx, name, scope, &unassigned{e: s.e, name: name, gvr: r.GVR, namespace: scope.Namespace})
		}

		wanted.Insert(s.list(ctx, r))
	}

	for name, f := range s.all {
		if !wanted.Has(name) {
			s.drop(name, f)
		}
	}

	ask()
	s.e.followed(t)
}

// narrowed returns the scopes in which the objects of a resource are watched.
func narrowed(scope objects.Scope, r resources.Resource, n placement.Narrowing) []objects.Scope {
	if !r.Namespaced {
		return []objects.Scope{scope}
	}

	if !n.Single {
		scope.Fields = n.Fields()
		return []objects.Scope{scope}
	}

	scopes := make([]objects.Scope, len(n.Only))
	for i, namespace := range n.Only {
		scopes[i] = scope
		scopes[i].Namespace = namespace
	}

	return scopes
}

// stream sees to it that a stream runs and selects what it should.
func (s *sources) stream(ctx context.Context, name string, scope objects.Scope, sink source.Sink) {
	if f, ok := s.all[name]; ok {
		if f.scope.GVR == scope.GVR && f.scope.Fields == scope.Fields {
			if f.scope.Selector != scope.Selector {
				f.scope.Selector = scope.Selector
				f.stream.Select(scope.Selector)
			}

			return
		}

		s.drop(name, f)
	}

	f := &following{scope: scope, stream: source.NewStream(s.e.Objects, scope, sink, s.e.Clock)}
	s.e.listing(name)
	s.run(ctx, name, f, f.stream.Run)
}

// list sees to it that somebody lists the objects of lost shards.
func (s *sources) list(ctx context.Context, r resources.Resource) string {
	name := "lost " + r.GroupResource().String()

	if f, ok := s.all[name]; ok {
		if f.scope.GVR == r.GVR {
			return name
		}

		s.drop(name, f)
	}

	l := &lister{e: s.e, name: name, gvr: r.GVR, pending: sets.New[string](), wake: make(chan struct{}, 1)}
	s.lists[name] = l
	s.run(ctx, name, &following{scope: objects.Scope{GVR: r.GVR}}, l.run)

	return name
}

// owed takes what is owed, and returns what has the sources list it. A stream that begins in between lists all by itself.
func (s *sources) owed() (ask func()) {
	shards, relist := s.e.takeLost()
	running := maps.Clone(s.all)

	return func() {
		for _, l := range s.lists {
			if len(shards) > 0 {
				l.add(shards)
			}
		}

		for name, f := range s.all {
			if relist && running[name] == f && f.stream != nil && strings.HasPrefix(name, unassignedPrefix) {
				s.e.listing(name)
				f.stream.Relist()
			}
		}

		s.e.listed(beingAsked)
	}
}

func (s *sources) drop(name string, f *following) {
	f.end()
	delete(s.all, name)
	delete(s.lists, name)
	s.e.forget(name)
}

func (s *sources) stop() {
	for _, f := range s.all {
		f.end()
	}
}

func everything(set *resources.Set) []resources.Resource {
	return append(slices.Clone(set.Main()), set.Controlled()...)
}

func selector(label, operator string, values []string) string {
	return fmt.Sprintf("%s %s (%s)", label, operator, strings.Join(values, ","))
}
