// Package engine carries out for one ring what package plan decides: it finds the objects that are out of place, and moves
// them within limits.
//
// Objects are found in three ways, none of which costs anything for objects that are in place:
//
//   - a watch per resource for objects without a shard or with one that is not available ("astray"); its first list, made
//     whenever the set of available shards has changed, is the work to do;
//   - a watch per resource for objects that carry the drain label;
//   - a sweep: one paged pass over the objects of the shards that have lost something by a change of shards, or over all
//     labelled ones after any other change of the ring, begun when those without a shard have one again; and one over all
//     when everything has been quiet for a while.
//
// Whatever finds an object only hands it to the workers. A worker asks the plan about the object as it was last seen and
// writes on the condition that it still is so; an object that has changed is read and decided anew. A main object and those
// that follow it take turns, so that none follows to where its owner has just been.
package engine

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
	"github.com/clusterring/clusterring/services/rebalancer/takeover"
)

// Limits bound what an engine does at a time. All are positive.
type Limits struct {
	// Workers is the number of writes at a time.
	Workers int
	// Total is the number of drains in flight, PerShard that of one shard. Drains that are late count against their shard
	// alone.
	Total, PerShard int
	// DrainTimeout is how long a shard may take to acknowledge a drain until that is reported.
	DrainTimeout time.Duration
	// Settle is how long a ring must have been in order until it is swept a last time.
	Settle time.Duration
}

// maxWork is the number of undecided objects of one resource at which the streams that find them are held back: about 10 MB.
const maxWork = 20_000

// Namespaces says which namespaces a selector selects.
type Namespaces interface {
	// Selects says whether the namespace exists and is selected.
	Selects(ctx context.Context, namespace string, selector labels.Selector) (bool, error)
}

// Target is what an engine works towards. It is not changed once it was given to an engine.
type Target struct {
	// View says which shards are available and what they own.
	View *membership.View
	// Set holds the ring's resources, and those that have left it and may still carry labels.
	Set *resources.Set
	// Leaving are the resources that have left the ring; all, if the ring is being deleted.
	Leaving map[schema.GroupResource]bool
	// Selector selects the namespaces that the ring covers.
	Selector labels.Selector
	// Revision differs if anything else has changed that calls for another sweep.
	Revision int64
}

// same says whether the way to one target is the way to the other too.
func (t *Target) same(o *Target) bool {
	return t.covers(o) && t.View.Fingerprint() == o.View.Fingerprint()
}

// covers says whether both targets are about the same objects.
func (t *Target) covers(o *Target) bool {
	if t == nil || t.Revision != o.Revision || t.Selector.String() != o.Selector.String() ||
		!t.Set.Equal(o.Set) || len(t.Leaving) != len(o.Leaving) {
		return false
	}

	for gr := range t.Leaving {
		if !o.Leaving[gr] {
			return false
		}
	}

	return true
}

// Config is what an engine needs. All fields are required.
type Config struct {
	// Ring is the ring's name.
	Ring       string
	Objects    *objects.Client
	Guard      *takeover.Guard
	Namespaces Namespaces
	Limits     Limits
	Clock      clock.WithTicker
	Log        logr.Logger
	// Changed is called, at most a few times a second, when [Engine.Report] may give something new. It must not block.
	Changed func()
	// Late is called when a drain was not acknowledged in time. It must not block.
	Late func(id objects.ID, shard string, after time.Duration)
}

// Engine moves the objects of one ring. Create it with [New], run it once, and give it a target whenever one is known.
type Engine struct {
	Config
	state  *state
	retry  workqueue.TypedRateLimiter[objects.ID]
	queue  workqueue.TypedRateLimitingInterface[objects.ID]
	target atomic.Pointer[Target]
	wake   chan struct{}
	owners *ownerNews
	turns  *turns
}

// New returns an engine without a target.
func New(c Config) *Engine {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[objects.ID](10*time.Millisecond, 10*time.Second)

	queue := workqueue.NewTypedRateLimitingQueueWithConfig(limiter,
		workqueue.TypedRateLimitingQueueConfig[objects.ID]{Clock: c.Clock})

	return &Engine{
		Config: c,
		state:  newState(),
		retry:  limiter,
		queue:  queue,
		wake:   make(chan struct{}, 1),
		owners: newOwnerNews(),
		turns:  newTurns(queue.Add),
	}
}

// Pursues says whether the engine works towards t, or towards what is the same to it.
func (e *Engine) Pursues(t *Target) bool { return e.Target().same(t) }

// SetTarget says what to work towards from now on. It returns at once and may be called at any time.
func (e *Engine) SetTarget(t *Target) {
	e.Guard.Observe(t.View)

	if old := e.target.Swap(t); !old.same(t) {
		turned := suspectsOf(old, t)

		e.state.update(func() {
			e.state.sweep = sweepState{}
			e.state.suspects.add(turned)
		})

		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
}

// Target returns the present target; nil if there is none yet.
func (e *Engine) Target() *Target { return e.target.Load() }

// Run works until ctx ends, and returns when nothing of the engine runs any more.
func (e *Engine) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer e.queue.ShutDown()

	for range e.Limits.Workers {
		wg.Go(func() { e.work(ctx) })
	}

	wg.Go(func() { e.tell(ctx) })

	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-e.wake:
			e.pursue(ctx, e.Target())
		}
	}
}

// pursue follows one target until there is another one.
func (e *Engine) pursue(ctx context.Context, t *Target) {
	ctx, cancel := context.WithCancel(ctx)

	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	e.state.update(func() {
		clear(e.state.failures)
		clear(e.state.swept)

		clear(e.state.unlisted)

		for id := range e.state.granted {
			e.state.ungrant(id)
		}
	})

	for _, r := range everything(t.Set) {
		wg.Go(func() { e.stream(e.drainScope(r), &drainSink{e: e, r: r}).Run(ctx) })

		if scope, ok := e.astrayScope(t, r); ok {
			e.state.update(func() { e.state.unlisted[r.GVR] = struct{}{} })
			wg.Go(func() { e.stream(scope, astraySink{e, r}).Run(ctx) })
		}

		for _, id := range e.state.drainsOf(r.GVR) {
			e.queue.Add(id) // the drain may be unwanted now, or its shard dead
		}
	}

	wg.Go(func() { e.sweepUntilClean(ctx, t) })
	wg.Go(func() { e.followOwners(ctx, t) })

	select {
	case <-ctx.Done():
	case <-e.wake:
		select {
		case e.wake <- struct{}{}: // for Run: the next target is there
		default:
		}
	}
}

// tell calls Changed after changes, at most four times a second. It does not look whether a report differs from the one
// before: others take reports too, and would be left with one from in between.
func (e *Engine) tell(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.state.news:
			e.Changed()
			e.pause(ctx, 250*time.Millisecond)
		}
	}
}

func everything(set *resources.Set) []resources.Resource {
	return append(append([]resources.Resource{}, set.Main()...), set.Controlled()...)
}

func (e *Engine) stream(scope objects.Scope, sink objects.Sink) *objects.Stream {
	return &objects.Stream{Client: e.Objects, Scope: scope, Sink: sink, Clock: e.Clock}
}

func (e *Engine) drainScope(r resources.Resource) objects.Scope {
	return objects.Scope{GVR: r.GVR, Selector: e.Objects.DrainLabel()}
}

// astrayScope selects what is without an available shard. There is nothing to do for such objects while there is no shard,
// nor for those of a resource that leaves the ring: the sweep frees them.
func (e *Engine) astrayScope(t *Target, r resources.Resource) (objects.Scope, bool) {
	available := t.View.AvailableShards()
	if len(available) == 0 || t.Leaving[r.GroupResource()] {
		return objects.Scope{}, false
	}

	return objects.Scope{GVR: r.GVR, Selector: selector(e.Objects.ShardLabel(), "notin", available)}, true
}

func selector(label, operator string, values []string) string {
	return fmt.Sprintf("%s %s (%s)", label, operator, strings.Join(values, ","))
}
