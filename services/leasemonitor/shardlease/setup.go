package shardlease

import (
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// workers is the number of Leases that are worked on at once: one slow write must not keep other failed shards waiting.
const workers = 5

// AddTo adds a controller to the manager that calls the reconciler for every Lease in the manager's cache, while this replica
// leads. The clock is what the controller waits by.
func (r *Reconciler) AddTo(mgr manager.Manager, clk clock.WithTicker) error {
	err := builder.ControllerManagedBy(mgr).
		Named("shardlease").
		For(&coordinationv1.Lease{}).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
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
