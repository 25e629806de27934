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
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/kit"
)

// workers is the number of Leases that are worked on at once: one slow write must not keep other failed shards waiting.
const workers = 5

// SetupWithManager adds a controller to the manager that calls the reconciler for every Lease of a ring in the manager's cache, for those of
// shards that a ring's status begins to name as lost or whose Pods have ended, and for those of a ring that is created or deleted or whose shard
// namespaces change, while this replica leads. The clock is what the controller waits by.
func (r *Reconciler) SetupWithManager(mgr manager.Manager, clk clock.WithTicker) error {
	b := builder.ControllerManagedBy(mgr)
	if r.Pods != nil {
		b.WatchesRawSource(source.TypedChannel(r.Pods.Leases(), &handler.TypedEnqueueRequestForObject[*coordinationv1.Lease]{}))
	}

	ofRings := predicate.NewPredicateFuncs(r.ringExists)
	ofRings.UpdateFunc = func(e event.UpdateEvent) bool { return r.ringExists(e.ObjectOld) || r.ringExists(e.ObjectNew) }

	err := b.Named("shardlease").
		For(&coordinationv1.Lease{}, builder.WithPredicates(ofRings)).
		Watches(&v1alpha1.ClusterRing{}, handler.Funcs{CreateFunc: r.created, UpdateFunc: r.updated, DeleteFunc: r.deleted}).
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

// ringExists reports whether the ring of a Lease exists. If it does not, its Leases are queued when it is created.
func (r *Reconciler) ringExists(l client.Object) bool {
	ring, err := r.ringOf(context.Background(), l.GetLabels()[contract.LabelClusterRing])
	return err != nil || ring.Name != ""
}

// queue is where Leases wait for the reconciler.
type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// created queues the Leases of a ring that has just been seen. Those that did not count before, because the ring was another one or there was
// none, may have no event any more.
func (r *Reconciler) created(ctx context.Context, e event.CreateEvent, q queue) {
	r.enqueue(ctx, e.Object.GetName(), everyShard, q)
}

// deleted queues the Leases of a ring that is gone: what is known of them is forgotten.
func (r *Reconciler) deleted(ctx context.Context, e event.DeleteEvent, q queue) {
	r.enqueue(ctx, e.Object.GetName(), everyShard, q)
}

func everyShard(string) bool { return true }

// updated queues the Leases of a ring's lost shards when these change, and all Leases of the ring when other namespaces count, or another
// sharder monitors them. A Lease whose shard is no longer lost needs no look: it is just not renewed.
func (r *Reconciler) updated(ctx context.Context, e event.UpdateEvent, q queue) {
	before, ok := e.ObjectOld.(*v1alpha1.ClusterRing)
	after, also := e.ObjectNew.(*v1alpha1.ClusterRing)

	switch {
	case !ok || !also:
	case !slices.Equal(before.Spec.ShardNamespaces, after.Spec.ShardNamespaces) || before.Spec.Sharder != after.Spec.Sharder:
		r.enqueue(ctx, after.Name, everyShard, q)
	case len(lostShards(after)) > 0 && !slices.Equal(lostShards(before), lostShards(after)):
		r.enqueue(ctx, after.Name, sets.New(lostShards(after)...).Has, q)
	}
}

// enqueue queues the Leases of a ring whose names are wanted, in whatever namespaces.
func (r *Reconciler) enqueue(ctx context.Context, ring string, wanted func(name string) bool, q queue) {
	leases := &coordinationv1.LeaseList{}
	if err := r.Client.List(ctx, leases, client.MatchingLabels{contract.LabelClusterRing: ring}, client.UnsafeDisableDeepCopy); err != nil {
		ctrllog.FromContext(ctx).Error(err, "Cannot list the Leases of a ring", "ring", ring)
		return
	}

	for i := range leases.Items {
		if l := &leases.Items[i]; wanted(l.Name) {
			q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(l)})
		}
	}
}
