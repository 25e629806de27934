package parameters

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
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
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/leasemonitor/ringstatus"
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
		if want, err = r.parameter(ctx, ring); err != nil {
			return reconcile.Result{}, err
		}
	}

	if want == nil {
		return reconcile.Result{}, r.remove(ctx, req.Name)
	}

	if err := controllerutil.SetOwnerReference(ring, want, r.Client.Scheme()); err != nil {
		return reconcile.Result{}, fmt.Errorf("let ring %s own the parameter of its fence: %w", ring.Name, err)
	}

	return kit.Later(r.write(ctx, want.Name, want))
}

// parameter returns the parameter that the fence of the ring needs; nil if it needs none. Which Pods run the shards follows from the Leases.
func (r *Fences) parameter(ctx context.Context, ring *v1alpha1.ClusterRing) (*v1alpha1.PolicyParameter, error) {
	if ring.Spec.FenceMode() == v1alpha1.FenceOff {
		return nil, nil //nolint:nilnil // it needs none
	}

	if older, err := clusterring.FindOlder(ctx, r.Client, ring); err != nil || older != "" {
		return nil, err
	}

	leases, err := ringstatus.Leases(ctx, r.Client, ring.Name)
	if err != nil {
		return nil, err
	}

	return clusterring.FenceParameter(ring, clusterring.ShardHolders(membership.RulesOf(ring).View(ring.Name, leases, nil), leases)), nil
}

// SetupWithManager adds a controller to the manager that calls the reconciler, while this replica leads, for every ring whose fence may need
// another parameter, whenever its Leases change otherwise than by a renewal, and for every parameter that changes.
func (r *Fences) SetupWithManager(mgr manager.Manager) error {
	err := builder.ControllerManagedBy(mgr).
		Named("fences").
		For(&v1alpha1.ClusterRing{}, builder.WithPredicates(fenceChanged)).
		Watches(&v1alpha1.ClusterRing{}, clusterring.Rivals(r.Client)).
		Watches(&coordinationv1.Lease{}, handler.EnqueueRequestsFromMapFunc(clusterring.ByLabel), builder.WithPredicates(ringstatus.ShardChanged)).
		Watches(&v1alpha1.PolicyParameter{}, handler.EnqueueRequestsFromMapFunc(clusterring.ByLabel)).
		WithOptions(controller.Options{RateLimiter: kit.RateLimiter[reconcile.Request]()}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add the controller of the fences' parameters: %w", err)
	}

	return nil
}

// fenceChanged leaves out changes of the status.
var fenceChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*v1alpha1.ClusterRing)
	after, also := e.ObjectNew.(*v1alpha1.ClusterRing)

	return !ok || !also || before.Generation != after.Generation || before.UID != after.UID ||
		before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero()
}}
