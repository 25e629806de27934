package shardlease

import (
	"context"
	"fmt"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/lease"
)

// doubts are the Leases that would have been taken if most shards of their rings had not fallen silent at once. A Lease
// stays in doubt until it changes, also if other shards come back before: those that are a little slower get the time, too.
// The zero value has none.
type doubts struct {
	mu sync.Mutex
	of map[types.NamespacedName]doubt
}

// doubt is what was in doubt of which ring.
type doubt struct {
	ring   string
	record lease.Record
}

// has reports whether the Lease is in doubt, and forgets older doubts about it.
func (d *doubts) has(id types.NamespacedName, now doubt) bool {
	d.mu.Lock()
	defer d.mu.Unlock()

	before, ok := d.of[id]
	if ok && before.ring == now.ring && before.record.Equal(now.record) {
		return true
	}

	delete(d.of, id)

	return false
}

// add notes a doubt, and reports whether it is the first about the ring.
func (d *doubts) add(id types.NamespacedName, now doubt) (first bool) {
	d.mu.Lock()
	defer d.mu.Unlock()

	first = true
	for _, other := range d.of {
		first = first && other.ring != now.ring
	}

	if d.of == nil {
		d.of = map[types.NamespacedName]doubt{}
	}

	d.of[id] = now

	return first
}

func (d *doubts) forget(id types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()

	delete(d.of, id)
}

// together reports whether the shard, which is silent, is one of most of its ring, and tells people when that begins.
func (r *Reconciler) together(ctx context.Context, judged *judgement) (bool, error) {
	id, now := client.ObjectKeyFromObject(judged.lease), doubt{judged.ring(), judged.snapshot.Record}
	if r.doubts.has(id, now) {
		return true, nil
	}

	ring, err := r.ringOf(ctx, now.ring)
	if err != nil {
		return false, err
	}

	leases := &coordinationv1.LeaseList{}
	if err := r.Client.List(ctx, leases, client.MatchingLabels{contract.LabelClusterRing: now.ring}, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list the Leases of ring %s: %w", now.ring, err)
	}

	shards := make([]lease.Observed, 0, len(leases.Items))

	for i := range leases.Items {
		l := &leases.Items[i]
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

	if r.doubts.add(id, now) {
		r.announceDoubt(ctx, judged, silent, of)
	}

	return true, nil
}
