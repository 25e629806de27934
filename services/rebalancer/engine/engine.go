package engine

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/services/internal/ancestry"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/takeover"
	"github.com/clusterring/clusterring/services/rebalancer/move"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
	"github.com/clusterring/clusterring/services/rebalancer/obligation"
	"github.com/clusterring/clusterring/services/rebalancer/placement"
)

const (
	// maxActive is the number of undecided objects at which the sources that find them are held back, maxParked that of those which
	// wait for something that are kept one by one: some 10 MB each.
	maxActive = 20_000
	maxParked = 20_000
	// maxBetween is of how many objects it is remembered whom they follow that are followed themselves, 60 MB; of others that is read when it is
	// needed. Each pass renews what is remembered, so that it may be old.
	maxBetween  = 200_000
	rememberFor = time.Hour
)

// Limits bound what an engine does at a time. All are positive, but for Settle and AuditBudget.
type Limits struct {
	// Workers is the number of objects dealt with at a time.
	Workers int
	// Total is the number of drains in flight, PerShard that of one shard. Drains that are late count against their shard
	// alone.
	Total, PerShard int
	// DrainTimeout is how long a shard may take to acknowledge a drain until that is reported.
	DrainTimeout time.Duration
	// Settle is how long after a change of the ring the pass has to begin that shows everything in its place: a replica of the
	// assigner may learn of the change late.
	Settle time.Duration
	// AuditBudget is the part of a core that the audit may take, of API server and rebalancer together; 0.01 if it is 0.
	AuditBudget float64
}

// Namespaces says which namespaces a selector selects.
type Namespaces = placement.Namespaces

// Target is what an engine works towards. It is not changed once it was given to an engine.
type Target = placement.Target

// Config is what an engine needs. All fields are required, but for Trouble.
type Config struct {
	// Ring is the ring's name.
	Ring       string
	Objects    *objects.Client
	Guard      *takeover.Guard
	Namespaces Namespaces
	Limits     Limits
	Clock      clock.WithTicker
	// Changed is called, at most a few times a second, when [Engine.Report] may give something new. It must not block.
	Changed func()
	// Late is called when a drain was not acknowledged in time. It must not block.
	Late func(id objects.ID, shard string, after time.Duration)
	// Trouble is called when a resource cannot be read: what the API server serves may have changed. It must not block.
	Trouble func()
}

// Engine moves the objects of one ring. Create it with [New], run it once, and give it a target whenever one is known.
type Engine struct {
	Config
	mover      *move.Mover
	turns      *move.Turns
	failureLog sparseLog
	*state
	// wake says that there is another target.
	wake chan struct{}
}

// New returns an engine without a target.
func New(c Config) *Engine {
	e := &Engine{Config: c, wake: make(chan struct{}, 1)}
	e.state = newState(c, ancestry.New(ancestry.Options{Read: c.Objects.Metadata, Size: maxBetween, Remember: rememberFor, Clock: c.Clock}))
	e.turns = move.NewTurns(e.again)
	e.mover = &move.Mover{
		Objects: c.Objects, Guard: c.Guard, World: e.world(), Obligations: e.state, Clock: c.Clock, Turn: e.turns.Begin,
		Moved: func(o objects.Object, verb plan.Verb) { countMove(c.Ring, o.GVR.GroupResource(), verb) },
	}

	return e
}

// world is what has to be asked about objects.
func (e *Engine) world() placement.World {
	return placement.World{Namespaces: e.Namespaces, Ancestors: e.ancestors}
}

// Pursues reports whether the engine works towards t, or towards what is the same to it.
func (e *Engine) Pursues(t *Target) bool { return e.Target().Same(t) }

// SetTarget says what to work towards from now on. It returns at once and may be called at any time.
func (e *Engine) SetTarget(t *Target) {
	e.Observe(t.View)

	forgetShards(e.Target(), t)

	if !e.retarget(t) {
		return
	}

	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Observe takes note of the ring's Leases, whatever target may follow from them.
func (e *Engine) Observe(view *membership.View) {
	for _, shard := range e.Guard.Observe(view) {
		e.Free(shard)
	}
}

// Lost returns the available shards of the present target that are not available in another one, sorted.
func (e *Engine) Lost(t *Target) []string { return sets.List(lostShards(e.Target(), t)) }

// Run works until ctx ends, logs as ctx says, and returns when nothing of the engine runs any more.
func (e *Engine) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()

	for range e.Limits.Workers {
		wg.Go(func() { e.work(ctx) })
	}

	wg.Go(func() { e.tell(ctx) })
	wg.Go(func() { e.tick(ctx) })
	wg.Go(func() { e.pass(ctx) })
	wg.Go(func() { e.gatherer(ctx) })

	s := newSources(e)
	defer s.stop()

	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-e.wake:
			s.follow(ctx, e.Target())
		case <-e.owed:
			s.owed()()
		}
	}
}

// work moves objects until ctx ends.
func (e *Engine) work(ctx context.Context) {
	for {
		job, ok := e.next(ctx)
		if !ok {
			return
		}

		out := e.mover.Move(ctx, e.Target, job)
		if ctx.Err() != nil {
			return
		}

		if out.Event == obligation.Failed && !out.Brief {
			e.failed(ctx, job.Object.ID, out.Reason)
		}

		if late, news := e.report(job.Object.ID, out); news {
			countLate(e.Ring, late.Shard)
			e.Late(late.ID, late.Shard, late.After)
		}
	}
}

// failed tells of an attempt that failed: of each in a metric, of one every few seconds in a log, for there may be very many.
func (e *Engine) failed(ctx context.Context, id objects.ID, reason string) {
	countFailure(e.Ring)

	if others, say := e.failureLog.say(e.Clock.Now()); say {
		log.FromContext(ctx).Error(nil, "Cannot move an object; will try again", "object", id.String(), "reason", reason, "others since the last such line", others)
	}
}

// sparseLog lets one of many lines be written in a while.
type sparseLog struct {
	mu     sync.Mutex
	next   time.Time
	others int
}

// say reports whether a line is to be written now, and how many were not since the last one.
func (l *sparseLog) say(now time.Time) (others int, say bool) {
	const every = 10 * time.Second

	l.mu.Lock()
	defer l.mu.Unlock()

	if now.Before(l.next) {
		l.others++
		return 0, false
	}

	others, l.others, l.next = l.others, 0, now.Add(every)

	return others, true
}

// tell calls Changed after changes, at most four times a second. It does not look whether a report differs from the one
// before: others take reports too, and would be left with one from in between.
func (e *Engine) tell(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.news:
			e.Changed()
			e.pause(ctx, 250*time.Millisecond)
		}
	}
}

// awaitFor waits until the condition holds, which is asked with the lock held, but for no longer than d.
func (e *Engine) awaitFor(ctx context.Context, d time.Duration, condition func() bool) {
	e.mu.Lock()
	now := condition()
	e.mu.Unlock()

	if now {
		return
	}

	ctx, cancel := context.WithCancel(ctx)

	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	wg.Go(func() {
		e.pause(ctx, d)
		cancel()
	})

	e.await(ctx, e.room, condition)
}

func (e *Engine) pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-e.Clock.After(d):
	}
}
