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

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/membership"
)

// Reconciler writes the status of one ring. All fields but Sharder are required.
type Reconciler struct {
	// Client reads ClusterRings and Leases from a cache.
	Client client.Reader
	// Status writes the status.
	Status clusterring.StatusWriter
	// NotTaken provides the Leases that cannot be taken over.
	NotTaken NotTaken
	// Sharder is whose rings it reports about. The zero value is the services.
	Sharder clusterring.Identity
}

// NotTaken provides the Leases that cannot be taken over from shards that do not renew them.
type NotTaken interface {
	// Of returns a message about each such Lease of the ring.
	Of(ring string) []string
	// Subscribe registers a function that is called with the name of each ring for which Of may return something else.
	Subscribe(tell func(ring string))
}

// Reconcile implements [reconcile.Reconciler]. It returns errors of the API server, unless the ring is gone.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	ring := &v1alpha1.ClusterRing{}
	if err := r.Client.Get(ctx, req.NamespacedName, ring); err != nil {
		if apierrors.IsNotFound(err) {
			return reconcile.Result{}, nil
		}

		return reconcile.Result{}, fmt.Errorf("read ring %s: %w", req.Name, err)
	}

	if !r.Sharder.Wanted(ring) {
		return reconcile.Result{}, nil
	}

	leases, err := Leases(ctx, r.Client, ring.Name)
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

// Leases reads the Leases of the ring with the given name from a cache. The caller must not change them. It returns errors of the reader.
func Leases(ctx context.Context, cache client.Reader, ring string) ([]*coordinationv1.Lease, error) {
	list := &coordinationv1.LeaseList{}
	if err := cache.List(ctx, list, client.MatchingLabels{contract.LabelClusterRing: ring}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the Leases of ring %s: %w", ring, err)
	}

	leases := make([]*coordinationv1.Lease, 0, len(list.Items))
	for i := range list.Items {
		leases = append(leases, &list.Items[i])
	}

	return leases, nil
}

// SetupWithManager adds a controller to the manager that calls the reconciler for every ring that changes, and whenever the Leases of
// its shards change otherwise than by a renewal or NotTaken says something else of them, while this replica leads.
func (r *Reconciler) SetupWithManager(mgr manager.Manager) error {
	err := builder.ControllerManagedBy(mgr).
		Named("ringstatus").
		For(&v1alpha1.ClusterRing{}).
		Watches(&v1alpha1.ClusterRing{}, clusterring.Rivals(r.Client)).
		Watches(&coordinationv1.Lease{}, handler.EnqueueRequestsFromMapFunc(clusterring.ByLabel), builder.WithPredicates(ShardChanged)).
		WatchesRawSource(clusterring.Source(r.Client, func(_ context.Context, one func(ring string), _ func()) error {
			r.NotTaken.Subscribe(one)
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
