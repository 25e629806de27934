package parameters

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/fence"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/labelclaim"
	"github.com/clusterring/clusterring/services/internal/ringrequest"
)

// Fences writes the parameter of each ring's fence. The assigner binds the policy of fences to it.
type Fences struct{ Writer }

// Reconcile implements [reconcile.Reconciler]. It returns errors of the API server. A conflict is an error, too: the cache is behind.
func (r *Fences) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	ring := &v1alpha1.ClusterRing{}

	err := r.Client.Get(ctx, req.NamespacedName, ring)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("read ring %s: %w", req.Name, err)
	}

	var want *v1alpha1.PolicyParameter

	if err == nil {
		holder, err := labelclaim.Find(ctx, r.Client, ring)
		if err != nil {
			return reconcile.Result{}, err
		}

		if holder == "" {
			want = fence.Parameter(ring)
		}
	}

	if want == nil {
		return reconcile.Result{}, r.remove(ctx, req.Name)
	}

	if err := controllerutil.SetOwnerReference(ring, want, r.Client.Scheme()); err != nil {
		return reconcile.Result{}, fmt.Errorf("let ring %s own the parameter of its fence: %w", ring.Name, err)
	}

	return kit.Later(r.write(ctx, want))
}

// SetupWithManager adds a controller to the manager that calls the reconciler, while this replica leads, for every ring whose fence may need
// another parameter, and for every parameter that changes.
func (r *Fences) SetupWithManager(mgr manager.Manager) error {
	err := builder.ControllerManagedBy(mgr).
		Named("fences").
		For(&v1alpha1.ClusterRing{}, builder.WithPredicates(fenceChanged)).
		Watches(&v1alpha1.ClusterRing{}, labelclaim.Rivals(r.Client), builder.WithPredicates(labelclaim.Changes)).
		Watches(&v1alpha1.PolicyParameter{}, handler.EnqueueRequestsFromMapFunc(ringrequest.ByLabel)).
		WithOptions(controller.Options{RateLimiter: kit.RateLimiter[reconcile.Request]()}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add the controller of the fences' parameters: %w", err)
	}

	return nil
}

// fenceChanged leaves out changes of the status, except those of holders.
var fenceChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*v1alpha1.ClusterRing)
	after, also := e.ObjectNew.(*v1alpha1.ClusterRing)

	return !ok || !also || before.Generation != after.Generation || before.UID != after.UID ||
		before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
		!equality.Semantic.DeepEqual(before.Status.Holders, after.Status.Holders)
}}
