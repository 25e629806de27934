package rings

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/kit"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// ringsAtOnce limits how many rings are reconciled at a time, so that a slow one delays only few others.
const ringsAtOnce = 4

// SetupWithManager adds the engines and a controller to the manager. It calls the reconciler for every ring that
// changes, and whenever a dependency of the ring changes. It starts when the Leases of shards have been read.
func (r *Reconciler) SetupWithManager(mgr manager.Manager, leases toolscache.DoneChecker) error {
	if err := mgr.Add(r.fleet); err != nil {
		return fmt.Errorf("set up the engines: %w", err)
	}

	err := builder.ControllerManagedBy(mgr).Named(r.Name).
		For(&v1alpha1.ClusterRing{}).
		Watches(&v1alpha1.ClusterRing{}, clusterring.Rivals(r.Client)).
		Watches(&corev1.Namespace{}, concerned(r.fleet)).
		WatchesRawSource(clusterring.Source(r.Client, func(ctx context.Context, one func(ring string), all func()) error {
			r.enqueue = one
			r.Index.Subscribe(one)
			r.Resources.Subscribe(all)

			toolscache.WaitFor(ctx, "", leases)

			_ = r.Resources.Await(ctx) // the conditions of rings report a failure

			return ctx.Err()
		})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: ringsAtOnce, RateLimiter: kit.RateLimiter[reconcile.Request](),
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the controller of rings: %w", err)
	}

	return nil
}

// concerned reconciles the rings that a change of a namespace concerns.
func concerned(f *fleet) handler.EventHandler {
	add := func(q queue, rings []string) {
		for _, ring := range rings {
			q.Add(clusterring.Request(ring))
		}
	}

	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { add(q, f.narrowed(e.Object)) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			add(q, f.relabelled(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels()))
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { add(q, f.narrowed(e.Object)) },
	}
}
