package shardlease

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// collect deletes a Lease that nobody holds, unless it has changed since it was judged.
func (r *Reconciler) collect(ctx context.Context, judged *judgement) error {
	err := r.Client.Delete(ctx, judged.lease, client.Preconditions{
		UID:             &judged.lease.UID,
		ResourceVersion: &judged.lease.ResourceVersion,
	})
	if tooLate(err) {
		ctrllog.FromContext(ctx).V(1).Info("Shard came back while its Lease was being deleted")
		return nil
	}

	if err != nil {
		return fmt.Errorf("delete Lease %s: %w", client.ObjectKeyFromObject(judged.lease), err)
	}

	collections.WithLabelValues(judged.ring()).Inc()
	r.announce(ctx, judged, collected)

	return nil
}
