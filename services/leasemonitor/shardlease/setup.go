package shardlease

import (
	"context"
	"fmt"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/kit"
)

// workers is the number of Leases that are worked on at once: one slow write must not keep other failed shards waiting.
const workers = 5

// SetupWithManager adds a controller to the manager that calls the reconciler for every Lease in the manager's cache, and for those of
// shards that a ring's status begins to name as lost, while this replica leads. The clock is what the controller waits by.
func (r *Reconciler) SetupWithManager(mgr manager.Manager, clk clock.WithTicker) error {
	err := builder.ControllerManagedBy(mgr).
		Named("shardlease").
		For(&coordinationv1.Lease{}).
		Watches(&v1alpha1.ClusterRing{}, handler.EnqueueRequestsFromMapFunc(r.leasesOfLost), builder.WithPredicates(lostChanged)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			RateLimiter:             kit.RateLimiter[reconcile.Request](),
			NewQueue: func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
				return workqueue.NewTypedRateLimitingQueueWithConfig(limiter,
					workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: name, Clock: clk})
			},
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add the controller of Leases: %w", err)
	}

	return nil
}

// lostChanged lets changes through of the shards from which objects are to be taken.
var lostChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1alpha1.ClusterRing)
		after, also := e.ObjectNew.(*v1alpha1.ClusterRing)

		return ok && also && !slices.Equal(lostShards(before), lostShards(after))
	},
}

// leasesOfLost names the Leases of a ring's lost shards, in whatever namespaces. A Lease whose shard is named no more needs
// no look: it is just not renewed.
func (r *Reconciler) leasesOfLost(ctx context.Context, obj client.Object) []reconcile.Request {
	ring, ok := obj.(*v1alpha1.ClusterRing)
	if !ok || len(lostShards(ring)) == 0 {
		return nil
	}

	leases := &coordinationv1.LeaseList{}
	if err := r.Client.List(ctx, leases, client.MatchingLabels{v1alpha1.LabelClusterRing: ring.Name}, client.UnsafeDisableDeepCopy); err != nil {
		ctrllog.FromContext(ctx).Error(err, "Cannot list the Leases of a ring", "ring", ring.Name)
		return nil
	}

	lost := sets.New(lostShards(ring)...)

	var requests []reconcile.Request
	for i := range leases.Items {
		if l := &leases.Items[i]; lost.Has(l.Name) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(l)})
		}
	}

	return requests
}
