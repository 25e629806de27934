package shardlease

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
)

// keep renews a Lease that was taken, so that its shard stays without it while objects are moved, unless it has changed
// since it was judged.
func (r *Reconciler) keep(ctx context.Context, judged *judgement) error {
	err := r.Client.Update(ctx, lease.Renewed(judged.lease, r.Clock.Now()))
	if tooLate(err) {
		ctrllog.FromContext(ctx).V(1).Info("Lease changed while it was being kept from its shard")
		return nil
	}

	if err != nil {
		return fmt.Errorf("keep Lease %s from its shard: %w", client.ObjectKeyFromObject(judged.lease), err)
	}

	return nil
}

// lostShards are the shards from which objects are still to be taken without asking them.
func lostShards(ring *v1alpha1.ClusterRing) []string {
	if ring.Status.Assignment == nil {
		return nil
	}

	return ring.Status.Assignment.LostShards
}
