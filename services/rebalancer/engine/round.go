package engine

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// round is one pass.
type round struct {
	audit  bool
	target *Target
	visits []*visit
	// full reports whether it visits all objects. objects is the number of objects that it has seen.
	full    bool
	objects int
}

// visit is a part of a pass: the objects of one resource, of some shards or of all.
type visit struct {
	*look

	// of is the resource of the look when the pass began: another target may change it.
	of     resources.Resource
	shards []string
	all    bool
	// owed is where the pass has to look.
	owed extent
	// audited reports whether the pass is an audit, and the resource was settled when it began.
	audited bool
	// without are the objects without a key that it sees.
	without Keyless
	err     error
}

// begin records that a pass begins. It returns what the pass has to visit.
func (s *state) begin(audit bool) *round {
	s.mu.Lock()
	defer s.mu.Unlock()

	p := &round{audit: audit, target: s.target, full: true}
	now := s.clock.Now()

	for _, l := range s.passes.looks {
		at := l.due(s)
		if !audit && (at.IsZero() || at.After(now)) {
			p.full = false
			continue
		}

		v := &visit{look: l, of: l.resource, all: true, owed: l.extent, audited: audit && s.settled(l)}
		if !audit && l.extent.any() {
			v.shards, v.all = l.extent.among(s.target.View)
		}

		l.extent, l.began = extent{}, time.Time{}
		if v.all {
			l.began, l.moved = now, l.moves(s.table)
		}

		p.full = p.full && v.all
		p.visits = append(p.visits, v)
	}

	if p.full {
		s.table.Search()
	}

	return p
}

// finish records the result of a pass.
func (s *state) finish(p *round) {
	s.update(func(now time.Time) {
		same, failed := s.target.Same(p.target), false

		for _, v := range p.visits {
			failed = failed || v.err != nil

			if v.all && v.err == nil {
				v.keyless, v.counted = v.without, p.target
			}

			if v.err != nil || !same { // the extent now contains what was owed then, if it still concerns this ring
				v.extent.add(v.owed)
				v.began = time.Time{}
			}

			if same && (v.err != nil || !p.audit) {
				v.next = now.Add(v.backoff.Next())
			}
		}

		if p.full {
			s.passes.ended = now
		}

		if p.full && !failed {
			s.passes.objects = p.objects
		}
	})
}

// visit makes one visit.
func (e *Engine) visit(ctx context.Context, p *round, v *visit) error {
	scope := feed.Scope{GVR: v.of.GVR, Selector: e.Objects.ShardLabel()}
	if !v.all {
		scope.Selector = selector(scope.Selector, "in", v.shards)
	}

	held := time.Duration(0)
	if v.owed.any() { // many objects may have to move; other passes find nothing
		held = calmHeld
	}

	err := e.list(ctx, scope, held, func(s sight) { e.see(ctx, p, v, s) })
	if ctx.Err() == nil && e.Target().Same(p.target) {
		e.troubled(idOf(forMisplaced, v.of), err)
	}

	return err
}

// see observes an object that a pass visits.
func (e *Engine) see(ctx context.Context, p *round, v *visit, s sight) {
	o := s.object
	p.objects++

	known := v.audited && e.knows(o.ID)

	at, inPlace := e.observe(ctx, s)
	if at.Keyless {
		v.without.add(o)
	}

	if v.audited && !inPlace && !known && e.undisturbed(v.look) {
		audited.WithLabelValues(e.Ring).Inc()
		log.FromContext(ctx).Info("The audit has found a misplaced object", "object", o.String(), "shard", o.Shard, "desired", at.Desired)
	}
}

// undisturbed reports whether nothing has changed, and nothing was owed, since the resource was verified. A ring that changes and
// changes back may have misplaced objects.
func (e *Engine) undisturbed(l *look) bool {
	e.mu.Lock()
	defer e.mu.Unlock()

	return l.verified
}
