package shardlease

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
)

const (
	// sweepEvery is the time between two searches for Leases to delete.
	sweepEvery = 10 * time.Second
	// straysPerSecond is how many Leases are deleted, because shards of rings must not wait for that.
	straysPerSecond = 2.5
)

// Strays deletes the Leases of rings that do not exist, one after the other, when nobody has renewed them for long.
// Nothing else is written about them: anybody who may create a Lease can make up a ring. Add it to a manager: it runs
// in the replica that leads. All fields are required.
type Strays struct {
	// Client writes, and reads all Leases of shards, and all rings, from a cache.
	Client client.Client
	// Clock and Ages are those of the Reconciler.
	Clock clock.PassiveClock
	Ages  *lease.Observer
}

// Start implements manager.Runnable: it deletes until ctx ends.
func (s *Strays) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			ctrllog.FromContext(ctx).Error(err, "Cannot delete Leases of rings that do not exist")
		}
	}, sweepEvery)

	return nil
}

// Sweep deletes all Leases that are due, and returns the first error.
func (s *Strays) Sweep(ctx context.Context) error {
	leases := &coordinationv1.LeaseList{}
	if err := s.Client.List(ctx, leases, client.HasLabels{contract.LabelClusterRing},
		client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list Leases: %w", err)
	}

	var first error

	pace := flowcontrol.NewTokenBucketRateLimiter(straysPerSecond, 1)

	for i := range leases.Items {
		if l := &leases.Items[i]; s.due(ctx, l) && pace.Wait(ctx) == nil {
			if err := s.delete(ctx, client.ObjectKeyFromObject(l)); first == nil {
				first = err
			}
		}
	}

	return first
}

func (s *Strays) due(ctx context.Context, l *coordinationv1.Lease) bool {
	ring := l.Labels[contract.LabelClusterRing]
	if ring == "" {
		return false
	}

	err := s.Client.Get(ctx, types.NamespacedName{Name: ring}, &v1alpha1.ClusterRing{}, client.UnsafeDisableDeepCopy)
	if !apierrors.IsNotFound(err) {
		return false
	}

	snapshot, seen := look(s.Ages, l, s.Clock.Now())

	return lease.Abandoned(snapshot, seen.Age)
}

// delete deletes a Lease that is still due, unless it has changed since the cache saw it. Nobody may delete a Lease
// that its shard holds, so it is first taken.
func (s *Strays) delete(ctx context.Context, id types.NamespacedName) error {
	l := &coordinationv1.Lease{}
	if ok, err := did(ctx, "read", id, s.Client.Get(ctx, id, l)); !ok || !s.due(ctx, l) {
		return err
	}

	if record := lease.RecordOf(l); record.HeldBy(l.Name) {
		unchanged := client.MergeFromWithOptions(l.DeepCopy(), client.MergeFromWithOptimisticLock{})

		l = lease.Acquired(l, record.Duration, s.Clock.Now())
		if ok, err := did(ctx, "take over", id, s.Client.Patch(ctx, l, unchanged)); !ok {
			return err
		}
	}

	if ok, err := did(ctx, "delete", id, remove(ctx, s.Client, l)); !ok {
		return err
	}

	collections.WithLabelValues(unknown).Inc()
	ctrllog.FromContext(ctx).V(1).Info("Deleted a Lease of a ring that does not exist", "lease", id, "ring",
		l.Labels[contract.LabelClusterRing])

	return nil
}
