package shardlease

import (
	"context"

	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/leases"
)

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

	known, _ := r.doubts.Load(id)
	if before, ok := known.(doubt); ok && before.ring == now.ring && before.record.Equal(now.record) {
		return true, nil
	}

	r.doubts.Delete(id)

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
		if ring.Spec.CountsShardsIn(l.Namespace) {
			snapshot, seen := look(r.Ages, l, r.Clock.Now())
			shards = append(shards, lease.Observed{Snapshot: snapshot, Age: seen.Age})
		}
	}

	silent, of, together := lease.Together(shards)
	if !together {
		return false, nil
	}

	first := true

	r.doubts.Range(func(_, other any) bool {
		d, _ := other.(doubt)
		first = first && d.ring != now.ring

		return first
	})
	r.doubts.Store(id, now)

	if first {
		r.announce(ctx, judged, doubted, silent, of)
	}

	return true, nil
}
