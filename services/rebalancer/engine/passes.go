package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
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
	// perObject is the cost of visiting one object.
	perObject = work.PerObject
)

// passes decides when to visit the labeled objects, and which of them. Create it with newPasses.
//
// Invariants:
//
//  1. A resource becomes verified only by a pass over all its objects that ended without an error. It began when the target had
//     not changed for the settle period. None of the objects moved from its start until there was no obligation of the resource.
//     For a controlled resource, the same holds for all main resources, because their moves concern what follows them.
//  2. A debt is dropped only when a pass that began after it has ended.
//  3. The intervals between failing passes over a resource, and between passes that find something repeatedly, grow up to half a
//     minute.
type passes struct {
	ring   string
	settle time.Duration
	budget float64

	// since is the time of the last change of the target.
	since time.Time
	// looks are about the resources of the target, in its order.
	looks []*look
	// ended is when the last pass over all objects ended, or when the first was due. objects is the number of objects that it
	// saw.
	ended   time.Time
	objects int
}

// look is what passes know about one resource.
type look struct {
	resource resources.Resource
	// among are the resources whose moves concern its objects: itself, and all main resources if it is controlled.
	among []schema.GroupResource
	// extent is where a pass has to look.
	extent   extent
	verified bool
	// began is when the last pass over all its objects began; zero if that pass proves nothing. moved is the table's count of
	// moves then.
	began time.Time
	moved uint64
	// next is when the next pass may begin.
	next    time.Time
	backoff feed.Pauses
	// keyless are the objects without a key that the last pass over all its objects saw.
	keyless keyless
}

// newPasses returns the passes of a ring that no pass has visited yet.
func newPasses(ring string, l Limits) passes {
	return passes{ring: ring, settle: l.Settle, budget: l.AuditBudget}
}

// retarget records that the target has changed, and where objects may therefore be misplaced. When partitions move between
// shards, objects that follow others move with their owners, whose moves search for them.
func (p *passes) retarget(now time.Time, before, after *Target) {
	var (
		more  = extentOf(before, after)
		mains []schema.GroupResource
		looks []*look
	)

	for i, r := range everything(after.Set) {
		of, main := r.GroupResource(), i < len(after.Set.Main())
		if main {
			mains = append(mains, of)
		}

		l := p.look(of)
		if l == nil {
			l = &look{backoff: feed.NewPauses("passes of "+p.ring+" "+of.String(), 100*time.Millisecond, 30*time.Second)}
		}

		if l.resource, l.among = r, []schema.GroupResource{of}; !main {
			l.among = append(l.among, mains...)
		}

		if main || !more.notAll {
			l.extent.add(more)
		}

		l.doubt()
		l.backoff.Reset()
		l.next = time.Time{}
		looks = append(looks, l)
	}

	if p.looks, p.since = looks, now; p.ended.IsZero() {
		p.ended = now
	}
}

// look returns what is known about a resource; nil if it is not one of the target.
func (p *passes) look(of schema.GroupResource) *look {
	for _, l := range p.looks {
		if l.resource.GroupResource() == of {
			return l
		}
	}

	return nil
}

// owe records what passes have to look for.
func (p *passes) owe(d work.Debt) {
	for _, l := range p.looks {
		if d.All {
			l.extent.addAll()
		}

		l.extent.addShards(d.Misplaced)

		if d.All || len(d.Misplaced) > 0 || d.Unseen.HasAny(l.among...) {
			l.doubt()
		}
	}
}

// verified returns the number of verified resources, and whether these are all.
func (p *passes) verified() (n int, all bool) {
	for _, l := range p.looks {
		if l.verified {
			n++
		}
	}

	return n, n == len(p.looks)
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

// doubt records that no pass has proved anything about the resource.
func (l *look) doubt() { l.verified, l.began = false, time.Time{} }

// still reports whether no object of the resource is out of its place, as far as is known.
func (l *look) still(s *state) bool {
	return !slices.ContainsFunc(l.among, func(of schema.GroupResource) bool { return !s.table.Still(of) || s.lookingFor(of) })
}

// moves counts the moves that concern the resource.
func (l *look) moves(t *work.Table) (n uint64) {
	for _, of := range l.among {
		n += t.Moved(of)
	}

	return n
}

// due decides which pass over the resource is due, and when. The lock must be held.
func (l *look) due(s *state) (k kind, at time.Time) {
	p := &s.passes
	still := !l.verified && l.still(s)

	if still && !l.began.IsZero() && l.moved == l.moves(s.table) && !l.extent.any() && !l.began.Before(p.since.Add(p.settle)) {
		l.verified = true
		l.backoff.Reset()
	}

	switch {
	case l.extent.any():
		k, at = change, p.since
	case !l.verified && still:
		k, at = check, p.since.Add(p.settle)
	}

	if at.Before(l.next) {
		at = l.next
	}

	return k, at
}

// dueNow decides which pass is due now, or when to ask again. at is zero if only a change can make a pass due. The lock must be
// held.
func (s *state) dueNow() (k kind, at time.Time) {
	now := s.clock.Now()
	k, at = audit, s.passes.ended.Add(s.passes.pace())

	for _, l := range s.passes.looks {
		// Pauses of one resource do not put off the audit of all.
		if of, then := l.due(s); of != noPass && (k == audit && !l.next.After(now) || then.Before(at)) {
			k, at = of, then
		}
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

// visit is a part of a pass: the objects of one resource, of some shards or of all.
type visit struct {
	*look

	// resource is that of the look when the pass began: another target may change it.
	resource resources.Resource
	shards   []string
	all      bool
	// owed is where the pass has to look.
	owed extent
	// audited reports whether the pass is an audit, and the resource was settled when it began.
	audited bool
	// without are the objects without a key that it sees.
	without keyless
}

// begin records that a pass begins. It returns what the pass has to visit, and whether that is everything. The lock must be held.
func (s *state) begin(k kind) (visits []visit, full bool) {
	now, p := s.clock.Now(), &s.passes
	full = k == audit || k == change && !now.Before(p.ended.Add(overdue*p.pace()))
	everywhere := 0

	for _, l := range p.looks {
		v := visit{look: l, resource: l.resource, all: true, owed: l.extent, audited: k == audit && s.settled(l)}

		if of, at := l.due(s); !full {
			if of == noPass || at.After(now) {
				continue
			}

			if of == change {
				v.shards, v.all = l.extent.among(s.target.View)
			}
		}

		if l.extent.clear(); v.all {
			everywhere++
		}

		visits = append(visits, v)
	}

	for _, v := range visits {
		if v.began = (time.Time{}); v.all {
			v.began, v.moved = now, v.moves(s.table)
		}
	}

	if full = everywhere == len(p.looks); full {
		s.table.Search()
	}

	return visits, full
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
			before, _ := e.passes.verified()
			k, at = e.dueNow()

			if n, all := e.passes.verified(); n != before {
				if all {
					e.grace = grace{known: len(e.target.View.AvailableShards())}
				}

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
	visits, full := e.begin(k)
	e.mu.Unlock()

	p := &round{e: e, t: t, full: full}
	if k == change { // many objects may have to move; other passes find nothing
		p.held = calmHeld
	}

	errs := make([]error, len(visits))

	for i := range visits {
		if v := &visits[i]; v.all || len(v.shards) > 0 {
			v.without.target = t
			errs[i] = p.over(ctx, v)
		}
	}

	if ctx.Err() == nil {
		e.finish(k, p, visits, errs)
	}
}

// finish records the result of a pass: the error of each visit.
func (e *Engine) finish(k kind, p *round, visits []visit, errs []error) {
	e.update(func(now time.Time) {
		ps, failed := &e.passes, errors.Join(errs...) != nil

		if p.full && !failed {
			ps.ended, ps.objects = now, p.objects
		}

		if k == audit && failed {
			ps.ended = now
		}

		same := e.target.Same(p.t)

		for i, v := range visits {
			if v.all && errs[i] == nil {
				v.keyless = v.without
			}

			switch {
			case !same:
				// The extent now contains what was owed then, if it still concerns this ring.
				v.extent.add(v.owed)
				v.began = time.Time{}
			case errs[i] != nil:
				v.extent.add(v.owed)
				v.began = time.Time{}
				v.verified = v.verified && k == audit
				v.next = now.Add(v.backoff.Next())
			case k != audit:
				v.next = now.Add(v.backoff.Next())
			}
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
