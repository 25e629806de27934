package shardlease

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/services/internal/lease"
)

// acquire takes the Lease from its shard, which is then dead to everybody, or keeps it from one that has released it. The update carries the resourceVersion of the
// Lease that was judged: a shard that renews first keeps it.
func (r *Reconciler) acquire(ctx context.Context, judged *judgement) error {
	d := lease.TakenFor(judged.snapshot, judged.seen.Own)

	err := r.Client.Update(ctx, lease.Acquired(judged.lease, d, r.Clock.Now()))
	if tooLate(err) {
		ctrllog.FromContext(ctx).V(1).Info("Shard came back while its Lease was being taken over")
		return nil
	}

	if err != nil {
		return fmt.Errorf("take over Lease %s: %w", client.ObjectKeyFromObject(judged.lease), err)
	}

	if !judged.State.Available() {
		r.announce(ctx, judged, kept)
		return nil
	}

	takeovers.WithLabelValues(judged.ring()).Inc()

	if judged.snapshot.Ended {
		r.announce(ctx, judged, ended)
	} else {
		r.announce(ctx, judged, failed)
	}

	return nil
}
