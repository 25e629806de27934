package shardlease

import (
	"context"
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/leases"
)

// perLease remembers something about Leases. It is safe for concurrent use. The zero value is empty.
type perLease[V any] struct {
	mu sync.Mutex
	of map[types.NamespacedName]V
}

func (p *perLease[V]) get(id types.NamespacedName) (V, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	v, ok := p.of[id]

	return v, ok
}

// set returns what was remembered before.
func (p *perLease[V]) set(id types.NamespacedName, v V) (before map[types.NamespacedName]V) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if before = maps.Clone(p.of); p.of == nil {
		p.of = map[types.NamespacedName]V{}
	}

	p.of[id] = v

	return before
}

func (p *perLease[V]) forget(id types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()

	delete(p.of, id)
}

// doubt is why a Lease would have been taken, in which ring, if most of the ring's shards had not fallen silent at
// once. A Lease stays in doubt until it changes, also if other shards come back before: those that are a little slower
// get the time, too.
type doubt struct {
	ring   string
	record lease.Record
}

// together reports whether the shard, which is silent, is one of most of its ring, and tells people when that begins.
func (r *Reconciler) together(ctx context.Context, judged *judgement) (bool, error) {
	id, now := judged.id(), doubt{judged.ring(), judged.snapshot.Record}
	if before, ok := r.doubts.get(id); ok && before.ring == now.ring && before.record.Equal(now.record) {
		return true, nil
	}

	r.doubts.forget(id)

	ring, err := r.ringOf(ctx, now.ring)
	if err != nil {
		return false, err
	}

	all, err := leases.Cached(ctx, r.Client, now.ring)
	if err != nil {
		return false, err
	}

	shards := make([]lease.Observed, 0, len(all))

	for _, l := range all {
		if !ring.Spec.CountsShardsIn(l.Namespace) {
			continue
		}

		record := lease.RecordOf(l)
		seen := r.Ages.Look(client.ObjectKeyFromObject(l), record, r.Clock.Now())
		shards = append(shards, lease.Observed{
			Snapshot: lease.Snapshot{Shard: l.Name, Record: record, Kept: seen.Kept}, Age: seen.Age,
		})
	}

	silent, of, together := lease.Together(shards)
	if !together {
		return false, nil
	}

	first := true
	for _, other := range r.doubts.set(id, now) {
		first = first && other.ring != now.ring
	}

	if first {
		r.announce(ctx, judged, doubted, silent, of)
	}

	return true, nil
}
