package ringstatus

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/leases"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/leasemonitor/shardlease"
)

// Reconciler writes the status of one ring. All fields but Sharder are required.
type Reconciler struct {
	// Client reads ClusterRings and Leases from a cache.
	Client client.Reader
	// Status writes the status.
	Status clusterring.StatusWriter
	// NotTaken tracks the Leases that cannot be taken over from shards that do not renew them.
	NotTaken *shardlease.NotTaken
	// Sharder is whose rings it reports about. The zero value is the services.
	Sharder clusterring.Identity
}

// Reconcile implements [reconcile.Reconciler]. It returns errors of the API server, unless the ring is gone.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	ring := &v1alpha1.ClusterRing{}

	err := r.Client.Get(ctx, req.NamespacedName, ring)
	switch {
	case apierrors.IsNotFound(err) || err == nil && !r.Sharder.Wanted(ring):
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("read ring %s: %w", req.Name, err)
	}

	leases, err := leases.Cached(ctx, r.Client, ring.Name)
	if err != nil {
		return reconcile.Result{}, err
	}

	holder, err := clusterring.FindOlder(ctx, r.Client, ring)
	if err != nil {
		return reconcile.Result{}, err
	}

	err = r.Status.Write(ctx, ring, Of(ring, leases, r.NotTaken.Of(req.Name), holder))
	if apierrors.IsConflict(err) {
		err = nil // another ring has its name: the watch brings it
	}

	return reconcile.Result{}, err
}

// SetupWithManager adds a controller to the manager that calls the reconciler for every ring that changes, and whenever
// the Leases of its shards change otherwise than by a renewal or NotTaken says something else of them, while this
// replica leads.
func (r *Reconciler) SetupWithManager(mgr manager.Manager) error {
	err := builder.ControllerManagedBy(mgr).
		Named("ringstatus").
		For(&v1alpha1.ClusterRing{}).
		Watches(&v1alpha1.ClusterRing{}, clusterring.Rivals(r.Client)).
		Watches(&coordinationv1.Lease{}, handler.EnqueueRequestsFromMapFunc(clusterring.ByLabel),
			builder.WithPredicates(ShardChanged)).
		WatchesRawSource(clusterring.Source(r.Client, func(_ context.Context, one func(ring string), _ func()) error {
			r.NotTaken.Notify(one)
			return nil
		})).
		WithOptions(controller.Options{RateLimiter: kit.RateLimiter[reconcile.Request]()}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add the controller of ring status: %w", err)
	}

	return nil
}

// ShardChanged leaves out the renewals of Leases, which are nearly all of their changes.
var ShardChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*coordinationv1.Lease)
	after, also := e.ObjectNew.(*coordinationv1.Lease)

	return !ok || !also || !membership.SameShard(before, after)
}}
