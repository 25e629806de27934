package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/placement"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

const (
	// urgentFirst is how long a pass waits for more urgent work without seeing progress. urgentAtMost is how long it waits in
	// total: about fifty thousand moves.
	urgentFirst  = 10 * time.Second
	urgentAtMost = 12 * urgentFirst
	// auditEvery is the shortest time from one audit to the next.
	auditEvery = time.Minute
	// overdue is the number of audit intervals after which a change triggers a pass over all objects. Shards may come and go
	// forever, so that neither a check nor an audit becomes due.
	overdue = 2
	// auditBudget is the default share of a core that audits may use.
	auditBudget = 0.01
	// perObject is the cost of visiting one object, for the API server and the rebalancer: see docs/performance.md.
	perObject = 25 * time.Microsecond
)

// passes decides when to visit the labeled objects, and which of them. Create it with newPasses.
//
// Invariants:
//
//  1. The ring becomes verified only by a pass over all objects that ended without an error. It began when the target had
//     not changed for the settle period. No object moved from its start until there was no obligation.
//  2. A debt is dropped only when a pass that began after it has ended.
//  3. The intervals between failing passes, and between passes that find something repeatedly, grow up to half a minute.
type passes struct {
	settle time.Duration
	budget float64

	// extent is where a pass has to look.
	extent extent
	// since is the time of the last change of the target.
	since    time.Time
	verified bool
	// began is when the last pass over all objects began; zero if that pass proves nothing. moved is the table's count of
	// moves then.
	began time.Time
	moved uint64
	// ended is when the last pass over all objects ended, or when the first was due. objects is the number of objects that it
	// saw.
	ended   time.Time
	objects int
	// keyless are the objects without a key that this pass saw.
	keyless keyless
	// next is when the next pass may begin.
	next    time.Time
	backoff feed.Pauses
}

// newPasses returns the passes of a ring that no pass has visited yet. The intervals between failing passes, and between
// passes that find something repeatedly, grow from 0.1 s to 30 s.
func newPasses(ring string, l Limits) passes {
	return passes{settle: l.Settle, budget: l.AuditBudget, backoff: feed.NewPauses("passes of "+ring, 100*time.Millisecond, 30*time.Second)}
}

// retarget records that the target has changed, and where objects may therefore be misplaced.
func (p *passes) retarget(now time.Time, more extent) {
	p.extent.add(more)
	p.since, p.verified, p.began = now, false, time.Time{}
	p.next = time.Time{}

	if p.ended.IsZero() {
		p.ended = now
	}

	p.backoff.Reset()
}

// owe records what passes have to look for.
func (p *passes) owe(d work.Debt) {
	if d.All {
		p.extent.addAll()
	}

	p.extent.addShards(d.Misplaced)

	if d.All || d.Unseen || len(d.Misplaced) > 0 {
		p.verified, p.began = false, time.Time{}
	}
}

// kind is the reason for a pass.
type kind uint8

const (
	// noPass means that no pass is due.
	noPass kind = iota
	// change looks where a change may have misplaced objects.
	change
	// check verifies that every object is in its place.
	check
	// audit does the same without a reason to expect misplaced objects.
	audit
)

// due decides which pass is due now, or when to ask again. at is zero if only a change can make a pass due. The table must
// belong to the same ring. listing reports whether some source may still find objects.
func (p *passes) due(now time.Time, t *work.Table, listing bool) (k kind, at time.Time) {
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

// pace returns the time from the end of one audit to the next, according to the budget.
func (p *passes) pace() time.Duration {
	budget := p.budget
	if budget <= 0 {
		budget = auditBudget
	}

	return max(auditEvery, time.Duration(float64(p.objects)*float64(perObject)/budget))
}

// begin records that a pass begins. It returns where the pass has to look: at some shards or at all, and at main objects only
// or at all objects.
func (p *passes) begin(now time.Time, k kind, table *work.Table, t *Target) (shards []string, all, owners bool) {
	all = true
	if k == change && now.Before(p.ended.Add(overdue*p.pace())) {
		shards, all = p.extent.among(t.View)
		owners = p.extent.owners() && len(t.Set.Controlled()) > 0
	}

	p.extent.clear()

	if p.began = (time.Time{}); all && !owners {
		p.began, p.moved = now, table.Moved()
		table.Search()
	}

	return shards, all, owners
}

// pass visits labeled objects whenever a pass is due.
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
				e.grace = grace{known: len(e.target.View.AvailableShards())}
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

	p := &round{e: e, t: t, full: all && !owners, audited: k == audit && converged, keyless: keyless{target: t}}
	if k == change { // many objects may have to move; other passes find nothing
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

// finish records the result of a pass.
func (e *Engine) finish(k kind, p *round, owed extent, err error) {
	e.update(func(now time.Time) {
		ps := &e.passes

		if p.full && err == nil {
			ps.ended, ps.objects, ps.keyless = now, p.objects, p.keyless
		}

		switch {
		case !e.target.Same(p.t):
			// The extent now contains what was owed then, if it still concerns this ring.
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

// awaitUrgent lets objects without an available shard go first: no shard works on them, and a pass over very many objects
// would keep the API server busy. It continues to wait as long as their number changes within each urgentFirst: it may also
// grow, because sources are still finding them. It waits for at most urgentAtMost, because there may always be another object.
func (e *Engine) awaitUrgent(ctx context.Context) {
	left := -1

	for range urgentAtMost / urgentFirst {
		before := left
		if left = e.urgent(ctx); left == 0 || left == before {
			return
		}
	}
}

// urgent waits until nothing is urgent, for at most urgentFirst. It returns the number of objects that still have to be
// processed.
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
	// held is how long misplaced objects are held back.
	held time.Duration
	// full reports whether it visits all objects.
	full bool
	// audited reports whether it is an audit, and the ring was converged when it began.
	audited bool
	objects int
	keyless keyless
}

// over visits the labeled objects of one resource, of some shards or of all.
func (p *round) over(ctx context.Context, r resources.Resource, shards []string, all bool) error {
	scope := feed.Scope{GVR: r.GVR, Selector: p.e.Objects.ShardLabel()}
	chunks := [][]string{nil}

	if !all {
		chunks = slices.Collect(slices.Chunk(shards, namedAtOnce))
	}

	lookup := p.e.lookup()
	lookup.Namespaces = &remembered{Namespaces: p.e.Namespaces}

	var err error

	for _, names := range chunks {
		if names != nil {
			scope.Selector = selector(p.e.Objects.ShardLabel(), "in", names)
		}

		var version string

		if version, err = p.e.hold(lookup, p.held).list(ctx, scope, func(s sight) { p.look(ctx, lookup, s) }); err != nil {
			break
		}

		p.e.reached(r.GVR, version)
	}

	if ctx.Err() == nil && p.e.Target().Same(p.t) {
		p.e.troubled(idOf(forMisplaced, r), err)
	}

	return err
}

func (p *round) look(ctx context.Context, lookup placement.Lookup, s sight) {
	o := s.object
	p.objects++

	known := false
	if p.audited {
		_, known = p.e.Has(o.ID)
	}

	at, inPlace := p.e.observed(ctx, lookup, s)
	if at.Keyless {
		p.keyless.add(o)
	}

	if p.audited && !inPlace && !known && p.e.undisturbed() {
		countAudited(p.e.Ring)
		log.FromContext(ctx).Info("The audit has found a misplaced object", "object", o.String(), "shard", o.Shard, "desired", at.Desired)
	}
}

// undisturbed reports whether nothing has changed, and nothing was owed, since the ring was verified. A ring that changes and
// changes back may have misplaced objects.
func (e *Engine) undisturbed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()

	return e.passes.verified
}

// remembered caches the answer for each namespace for a while: a pass visits many objects in few namespaces.
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
