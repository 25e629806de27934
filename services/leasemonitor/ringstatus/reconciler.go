package ringstatus

import (
	"context"
	"fmt"
	"sync/atomic"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/labelclaim"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/ringrequest"
	"github.com/clusterring/clusterring/services/internal/sharder"
	"github.com/clusterring/clusterring/services/internal/status"
)

// Reconciler writes the status of one ring. All fields but Sharder are required.
type Reconciler struct {
	// Client reads ClusterRings and Leases from a cache.
	Client client.Reader
	// Status writes the status.
	Status status.Writer
	// NotTaken provides the Leases that cannot be taken over.
	NotTaken NotTaken
	// Sharder is whose rings it reports about. The zero value is the services.
	Sharder sharder.Identity
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

	holder, err := labelclaim.Find(ctx, r.Client, ring)
	if err != nil {
		return reconcile.Result{}, err
	}

	err = r.Status.Write(ctx, ring, Of(ring, leases, r.NotTaken.Of(req.Name), holder))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		err = nil // the ring is gone, or another one has its name: the watch brings it
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
	changes := &changes{}
	r.NotTaken.Subscribe(changes.enqueue)

	err := builder.ControllerManagedBy(mgr).
		Named("ringstatus").
		For(&v1alpha1.ClusterRing{}).
		Watches(&v1alpha1.ClusterRing{}, labelclaim.Rivals(r.Client), builder.WithPredicates(labelclaim.Changes)).
		Watches(&coordinationv1.Lease{}, handler.EnqueueRequestsFromMapFunc(ringrequest.ByLabel), builder.WithPredicates(ShardChanged)).
		WatchesRawSource(source.Func(changes.start)).
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

// changes hands the names of rings to the queue of a controller, once that runs. Before, there is nothing to hand on: a
// controller begins with all rings.
type changes struct {
	queue atomic.Pointer[workqueue.TypedRateLimitingInterface[reconcile.Request]]
}

func (c *changes) start(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	c.queue.Store(&queue)
	return nil
}

func (c *changes) enqueue(ring string) {
	if queue := c.queue.Load(); queue != nil {
		(*queue).Add(ringrequest.For(ring))
	}
}
