package engine

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/placement"
)

// round is one pass.
type round struct {
	e *Engine
	t *Target
	// held is how long misplaced objects are held back.
	held time.Duration
	// full reports whether it visits all objects.
	full    bool
	objects int
}

// over makes one visit.
func (p *round) over(ctx context.Context, v *visit) error {
	r := v.resource
	scope := feed.Scope{GVR: r.GVR, Selector: p.e.Objects.ShardLabel()}
	chunks := [][]string{nil}

	if !v.all {
		chunks = slices.Collect(slices.Chunk(v.shards, namedAtOnce))
	}

	lookup := p.e.lookup()
	lookup.Namespaces = &remembered{Namespaces: p.e.Namespaces}

	var err error

	for _, names := range chunks {
		if names != nil {
			scope.Selector = selector(p.e.Objects.ShardLabel(), "in", names)
		}

		var version string

		if version, err = p.e.hold(lookup, p.held).list(ctx, scope, func(s sight) { p.see(ctx, lookup, v, s) }); err != nil {
			break
		}

		p.e.reached(r.GVR, version)
	}

	if ctx.Err() == nil && p.e.Target().Same(p.t) {
		p.e.troubled(idOf(forMisplaced, r), err)
	}

	return err
}

func (p *round) see(ctx context.Context, lookup placement.Lookup, v *visit, s sight) {
	o := s.object
	p.objects++

	known := false
	if v.audited {
		_, known = p.e.Has(o.ID)
	}

	at, inPlace := p.e.observed(ctx, lookup, s)
	if at.Keyless {
		v.without.add(o)
	}

	if v.audited && !inPlace && !known && p.e.undisturbed(v.look) {
		countAudited(p.e.Ring)
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
