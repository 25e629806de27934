package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
	"github.com/clusterring/clusterring/services/rebalancer/obligation"
	"github.com/clusterring/clusterring/services/rebalancer/placement"
	"github.com/clusterring/clusterring/services/rebalancer/source"
)

const (
	// urgentFirst is how long a pass waits for what is more urgent without seeing any of it done, urgentAtMost how long it does so at all:
	// some fifty thousand moves.
	urgentFirst  = 10 * time.Second
	urgentAtMost = 12 * urgentFirst
	// auditEvery is the shortest time from one audit to the next.
	auditEvery = time.Minute
	// overdue is after how many times the pace of audits a change has everything looked at: shards may come and go for ever, so that no check
	// and no audit is due.
	overdue = 2
	// auditBudget is the part of a core that audits may take, unless it is set.
	auditBudget = 0.01
	// perObject is what it costs the API server and the rebalancer to go over one object: docs/performance.md has the figure.
	perObject = 25 * time.Microsecond
)

// passes decides when to go over the labelled objects, and where. Create it with newPasses.
//
// Invariants:
//
//  1. The ring is verified only by a pass over all that began when the ring had wanted the same for the settle period, was finished
//     without an error, and from whose begin until there was no obligation no object was moved.
//  2. What is owed is forgotten only when a pass that began later has been finished.
//  3. Failing, and passes that find something again and again, are spaced out up to half a minute.
type passes struct {
	settle time.Duration
	budget float64

	// extent is where a pass has to look now.
	extent extent
	// since is when the ring came to want what it wants now.
	since    time.Time
	verified bool
	// began is when the last pass over all began, and moved the table's count then; zero if it is not to be relied on.
	began time.Time
	moved uint64
	// ended is when the last pass over all ended, or when the first was due; objects is how many it saw.
	ended   time.Time
	objects int
	// next is when the next pass may begin.
	next    time.Time
	backoff source.Pauses
}

// newPasses returns the passes of a ring that has yet to be gone over. Failing passes, and those that find something again and again, are
// spaced out from 0.1 s to 30 s.
func newPasses(ring string, l Limits) passes {
	return passes{settle: l.Settle, budget: l.AuditBudget, backoff: source.NewPauses("passes of "+ring, 100*time.Millisecond, 30*time.Second)}
}

// retarget notes that the ring wants something else, and where objects may be misplaced therefore.
func (p *passes) retarget(now time.Time, more extent) {
	p.extent.add(more)
	p.since, p.verified, p.began = now, false, time.Time{}
	p.next = time.Time{}

	if p.ended.IsZero() {
		p.ended = now
	}

	p.backoff.Reset()
}

// owe notes that something has to be looked for.
func (p *passes) owe(d obligation.Debt) {
	if d.All {
		p.extent.addAll()
	}

	p.extent.addShards(d.Misplaced)

	if d.All || d.Unseen || len(d.Misplaced) > 0 {
		p.verified, p.began = false, time.Time{}
	}
}

// kind is why there is a pass.
type kind uint8

const (
	// noPass says that there is nothing to do.
	noPass kind = iota
	// change looks where a change may have put objects out of place.
	change
	// check looks whether everything is in its place.
	check
	// audit does so although nothing says that it is not.
	audit
)

// due decides what to do now, or when to ask again; at is zero if only a change is worth another look. The table must be that of the
// same ring; listing says that some source has more to tell.
func (p *passes) due(now time.Time, t *obligation.Table, listing bool) (k kind, at time.Time) {
	still := t.Empty() && !listing

	if !p.verified && still && !p.began.IsZero() && p.moved == t.Moved() && !p.extent.any() && !p.began.Before(p.since.Add(p.settle)) {
		p.verified = true
		p.backoff.Reset()
	}

	later := func(at time.Time) time.Time {
		if at.Before(p.next) {
			return p.next
		}

		return at
	}

	auditAt := later(p.ended.Add(p.pace()))

	switch {
	case p.extent.any():
		k, at = change, later(p.since)
	case !p.verified && still:
		k, at = check, later(p.since.Add(p.settle))
	default:
		k, at = audit, auditAt
	}

	if at.After(now) {
		k = noPass
	}

	return k, at
}

// pace is the time from the end of one audit to the next, by the budget.
func (p *passes) pace() time.Duration {
	budget := p.budget
	if budget <= 0 {
		budget = auditBudget
	}

	return max(auditEvery, time.Duration(float64(p.objects)*float64(perObject)/budget))
}

// begin notes that a pass begins, and returns where it has to look: at some shards or all, and at main objects alone or at all.
func (p *passes) begin(now time.Time, k kind, table *obligation.Table, t *Target) (shards []string, all, owners bool) {
	all = true
	if k == change && now.Before(p.ended.Add(overdue*p.pace())) {
		shards, all = p.extent.among(t.View)
		owners = p.extent.owners() && len(t.Set.Controlled()) > 0
	}

	p.extent.clear()

	if p.began = (time.Time{}); all && !owners {
		p.began, p.moved = now, table.Moved()
		table.Recount()
	}

	return shards, all, owners
}

// pass goes over labelled objects whenever that is due.
func (e *Engine) pass(ctx context.Context) {
	for ctx.Err() == nil {
		var (
			k  kind
			at time.Time
		)

		e.mu.Lock()

		if e.target != nil {
			before := e.passes.verified
			if k, at = e.passes.due(e.Clock.Now(), e.table, e.looking()); e.passes.verified != before {
				e.grace.known = len(e.target.View.AvailableShards())
				notify(e.news)
			}
		}

		e.mu.Unlock()

		if k != noPass {
			e.once(ctx, k)
			continue
		}

		var passed <-chan time.Time

		if !at.IsZero() {
			timer := e.Clock.NewTimer(at.Sub(e.Clock.Now()))
			passed = timer.C()

			select {
			case <-ctx.Done():
			case <-e.poke:
			case <-passed:
			}

			timer.Stop()

			continue
		}

		select {
		case <-ctx.Done():
		case <-e.poke:
		}
	}
}

// once makes one pass.
func (e *Engine) once(ctx context.Context, k kind) {
	if k != audit {
		e.awaitUrgent(ctx)
	}

	e.mu.Lock()
	t := e.target
	owed := e.passes.extent
	converged := e.passes.verified && e.table.Empty()
	shards, all, owners := e.passes.begin(e.Clock.Now(), k, e.table, t)
	e.mu.Unlock()

	p := &round{e: e, t: t, full: all && !owners, audited: k == audit && converged}
	if k == change { // much may have to move, while nothing is found in other passes
		p.held = calmHeld
	}

	var errs []error

	among := everything(t.Set)
	if owners {
		among = t.Set.Main()
	}

	for _, r := range among {
		if all || len(shards) > 0 {
			errs = append(errs, p.over(ctx, r, shards, all))
		}
	}

	if ctx.Err() == nil {
		e.finish(k, p, owed, errors.Join(errs...))
	}
}

// finish notes how a pass has ended.
func (e *Engine) finish(k kind, p *round, owed extent, err error) {
	e.update(func(now time.Time) {
		ps := &e.passes

		if p.full && err == nil {
			ps.ended, ps.objects = now, p.objects
		}

		switch {
		case !e.target.Same(p.t):
			// What was owed then is part of the extent since, if it is another ring's business at all.
			ps.extent.add(owed)
			ps.began = time.Time{}
		case err != nil:
			ps.extent.add(owed)
			ps.began = time.Time{}
			ps.verified = ps.verified && k == audit
			ps.next = now.Add(ps.backoff.Next())

			if k == audit {
				ps.ended = now
			}
		case k == check || k == change:
			ps.next = now.Add(ps.backoff.Next())
		}
	})
}

// awaitUrgent lets objects without an available shard go first: nobody works on them, and a pass over very many objects would keep the
// API server busy. It waits as long as there are fewer of them after each urgentFirst, or more, for they are just being found; and for
// urgentAtMost, for there may always be another one.
func (e *Engine) awaitUrgent(ctx context.Context) {
	left := -1

	for range urgentAtMost / urgentFirst {
		before := left
		if left = e.urgent(ctx); left == 0 || left == before {
			return
		}
	}
}

// urgent waits for urgentFirst until nothing is urgent, and returns how many objects are still to be dealt with.
func (e *Engine) urgent(ctx context.Context) (left int) {
	e.awaitFor(ctx, urgentFirst, func() bool {
		left = e.table.Busy()
		return !e.looking() && left == 0
	})

	return left
}

// round is one pass.
type round struct {
	e *Engine
	t *Target
	// held is how long what is out of place is kept back.
	held time.Duration
	// full says that it goes over everything.
	full bool
	// audited says that everything was in its place when it began.
	audited bool
	objects int
}

// over goes over the labelled objects of one resource, of some shards or of all.
func (p *round) over(ctx context.Context, r resources.Resource, shards []string, all bool) error {
	scope := objects.Scope{GVR: r.GVR, Selector: p.e.Objects.ShardLabel()}
	chunks := [][]string{nil}

	if !all {
		chunks = slices.Collect(slices.Chunk(shards, namedAtOnce))
	}

	world := p.e.world()
	world.Namespaces = &remembered{Namespaces: p.e.Namespaces}

	var err error

	for _, names := range chunks {
		if names != nil {
			scope.Selector = selector(p.e.Objects.ShardLabel(), "in", names)
		}

		var version string

		if version, err = p.e.hold(world, p.held).list(ctx, scope, func(s sight) { p.look(ctx, world, s) }); err != nil {
			break
		}

		p.e.reached(r.GVR, version)
	}

	if ctx.Err() == nil && p.e.Target().Same(p.t) {
		p.e.troubled(idOf(forMisplaced, r), err)
	}

	return err
}

func (p *round) look(ctx context.Context, world placement.World, s sight) {
	o := s.object
	p.objects++

	known := false
	if p.audited {
		_, known = p.e.Has(o.ID)
	}

	at, inPlace := p.e.observed(ctx, world, s)
	if p.audited && !inPlace && !known && p.e.undisturbed() {
		countAudited(p.e.Ring)
		log.FromContext(ctx).Info("The audit has found an object out of its place", "object", o.String(), "shard", o.Shard, "belongs to", at.Desired)
	}
}

// undisturbed reports whether nothing has changed, and nothing is owed, since the ring was verified: a ring that changes, and changes back, may
// have put objects out of their places.
func (e *Engine) undisturbed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()

	return e.passes.verified
}

// remembered asks about each namespace once in a while: a pass has many objects, and few namespaces.
type remembered struct {
	Namespaces

	known map[string]bool
	asked int
}

// Selects implements [Namespaces].
func (m *remembered) Selects(ctx context.Context, namespace string, selector labels.Selector) (bool, error) {
	if m.asked++; m.asked%1000 == 1 {
		m.known = map[string]bool{}
	}

	if selected, ok := m.known[namespace]; ok {
		return selected, nil
	}

	selected, err := m.Namespaces.Selects(ctx, namespace, selector)
	if err == nil {
		m.known[namespace] = selected
	}

	return selected, err
}
