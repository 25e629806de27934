package engine

import (
	"cmp"
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/internal/takeover"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/move"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

const (
	// maxActive is the number of undecided objects at which their sources pause. maxParked is the number of objects that
	// are stored while they wait, or their requests fail again and again. Each takes about 10 MB.
	maxActive = 20_000
	maxParked = 20_000
	// maxBetween limits the number of objects for which the engine remembers whom they follow, if other objects follow
	// them in turn: 60 MB. Beyond it, the engine reads this from the API server when needed. Each pass renews the memory,
	// so entries may be old.
	maxBetween  = 200_000
	rememberFor = time.Hour
)

// Limits are the limits on what an engine does at a time. All fields are positive, except Settle and AuditBudget, which
// may be 0.
type Limits struct {
	// Workers is the number of objects that are processed at a time.
	Workers int
	// Total is the number of drains in flight. PerShard is the number of drains in flight of one shard. A late drain
	// counts only against its shard.
	Total, PerShard int
	// DrainTimeout is the time after which an unacknowledged drain is reported.
	DrainTimeout time.Duration
	// Settle is the time between a change of the ring and the start of the pass that may prove convergence: a replica of
	// the assigner may see the change late.
	Settle time.Duration
	// AuditBudget is the share of a core that the audit may use, API server and rebalancer together. 0 means 0.01.
	AuditBudget float64
}

// Namespaces reports which namespaces a selector selects.
type Namespaces = move.Namespaces

// Target is the desired state of an engine. It must not be changed after an engine has received it.
type Target = move.Target

// Config configures an engine. All fields are required, except Trouble.
type Config struct {
	// Ring is the ring's name.
	Ring       string
	Objects    *feed.Client
	Guard      *takeover.Guard
	Namespaces Namespaces
	Limits     Limits
	Clock      clock.WithTickerAndDelayedExecution
	// Changed is called, at most a few times a second, when [Engine.Report] may return something new. It must not block.
	Changed func()
	// Late is called when a drain was not acknowledged in time. It must not block.
	Late func(id feed.ID, shard string, after time.Duration)
	// Trouble is called when a resource cannot be read: the set of resources that the API server serves may have changed.
	// It must not block. It may be nil.
	Trouble func()
}

// Engine moves the objects of one ring. Create it with [New], run it once, and give it every new target.
//
// Invariant while its lock is free: if a resource is verified, no pass has to look for misplaced objects of it.
type Engine struct {
	Config
	mover      *move.Mover
	failureLog rate.Sometimes

	mu     sync.Mutex
	target *Target
	table  *work.Table
	grace  grace
	// looks are about the resources of the target, in its order, and since is when the target last changed.
	looks []*look
	since time.Time
	// relist requests a list of all objects without an available shard. lost are the shards that were lost since the last
	// one.
	relist bool
	lost   sets.Set[string]
	// failures are the sources that cannot be read, with the reason. unlisted are the sources that have not completed
	// their list yet, and whether it is their first one.
	failures map[sourceID]string
	unlisted map[sourceID]bool

	// due wakes the dispatcher, and room what waits for another condition. armed is when the table is looked at next; zero
	// if a change has to say when.
	due, room *sync.Cond
	armed     time.Time
	// news wakes the reporter, poke wakes the passes, ticks wakes what looks after the times of the table, and seeks wakes
	// the sources.
	news, poke, ticks, seeks chan struct{}
}

// New returns an engine without a target.
func New(c Config) *Engine {
	c.Limits.AuditBudget = cmp.Or(c.Limits.AuditBudget, 0.01) //nolint:mnd // as documented

	e := &Engine{
		Config: c, failureLog: rate.Sometimes{Interval: 10 * time.Second},
		table: work.New(work.Limits{
			Workers: c.Limits.Workers, Drains: c.Limits.Total, PerShard: c.Limits.PerShard, DrainTimeout: c.Limits.DrainTimeout,
			Active: maxActive, Parked: maxParked,
		}),
		lost: sets.New[string](), failures: map[sourceID]string{}, unlisted: map[sourceID]bool{},
		news: make(chan struct{}, 1), poke: make(chan struct{}, 1), ticks: make(chan struct{}, 1),
		seeks: make(chan struct{}, 1),
	}
	e.due, e.room = sync.NewCond(&e.mu), sync.NewCond(&e.mu)
	e.mover = &move.Mover{
		Objects: c.Objects, Guard: c.Guard, Clock: c.Clock, Free: e.free,
		Lookup: move.Lookup{Namespaces: c.Namespaces, Ancestors: resources.NewBook(resources.BookOptions{
			Read: c.Objects.Metadata, Size: maxBetween, Remember: rememberFor, Clock: c.Clock,
		})},
		Moved: func(o feed.Object, verb plan.Verb) {
			moves.WithLabelValues(c.Ring, o.GVR.GroupResource().String(), string(verb)).Inc()
		},
	}

	return e
}

// Pursues reports whether the current target of the engine is equivalent to t.
func (e *Engine) Pursues(t *Target) bool { return e.Target().Same(t) }

// SetTarget sets the target. It returns immediately and may be called at any time.
func (e *Engine) SetTarget(t *Target) {
	e.Observe(t.View)
	e.Objects.Reads(t.Set)

	if old := e.Target(); old.Same(t) && old.Narrow.Equal(t.Narrow) {
		return // no notification: its receiver sets the target
	}

	t.View.Table() // built here, because for a thousand shards it takes so long that nobody should wait for it at the lock

	e.update(func(now time.Time) { e.retarget(now, t) })
	notify(e.seeks)
}

// Observe records the Leases of the ring, independent of the target.
func (e *Engine) Observe(view *membership.View) {
	for _, shard := range e.Guard.Observe(view) {
		e.free(shard)
	}
}

// Run works until ctx ends, and logs to the logger of ctx. It returns when no goroutine of the engine runs anymore.
func (e *Engine) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()

	wg.Go(func() { e.dispatch(ctx) })
	wg.Go(func() { e.tell(ctx) })
	wg.Go(func() { e.pass(ctx) })
	wg.Go(func() { e.expire(ctx) })

	s := newSources(e)
	defer s.stop()

	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-e.seeks:
			s.follow(ctx)
		}
	}
}

// dispatch begins the jobs that are due, until ctx ends. The table limits how many are in progress. A job begins when
// its object may be read and written: the queue of the API server may be long, and what is known about the job does not
// become outdated in it.
func (e *Engine) dispatch(ctx context.Context) {
	var jobs sync.WaitGroup
	defer jobs.Wait()

	for e.await(ctx, e.due, e.table.Due) {
		leave, err := e.Objects.Enter(ctx)
		if err != nil {
			return // ctx has ended
		}

		leave = sync.OnceFunc(leave)

		if t, job, ok := e.take(); ok {
			jobs.Go(func() { e.work(ctx, t, job, leave) })
		} else {
			leave()
		}
	}
}

// work moves an object one step. A write that hangs leaves its place at the API server to others.
func (e *Engine) work(ctx context.Context, t *Target, job work.Job, leave func()) {
	defer leave()

	id := job.Object.ID

	out := e.mover.Move(ctx, t, job, func() {
		leave()

		// Fake clocks call this with their lock held.
		go e.update(func(now time.Time) { e.table.Hangs(now, id) })
	})
	if ctx.Err() != nil {
		return
	}

	if out.Next == work.Delayed && !out.Brief {
		failures.WithLabelValues(e.Ring).Inc()
		e.failureLog.Do(func() { // there may be many
			log.FromContext(ctx).Error(nil, "Cannot move an object; will retry", "object", id.String(), "reason", out.Reason)
		})
	}

	var late *work.Late

	e.update(func(now time.Time) { late = e.table.Report(now, id, out) })

	if late != nil {
		lateDrains.WithLabelValues(e.Ring).Inc()
		e.Late(late.ID, late.Shard, late.After)
	}
}

// tell calls Changed after changes, at most four times a second. It does not compare reports: others also take reports,
// and would be left with an intermediate one.
func (e *Engine) tell(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.news:
			e.Changed()
			e.sleep(ctx, e.Clock.Now().Add(250*time.Millisecond), nil)
		}
	}
}
