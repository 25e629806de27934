package certs

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// staleRetry is how long to wait for the cache after somebody else has written the object first.
const staleRetry = 100 * time.Millisecond

// maintainer is a controller of one object, which may not exist yet.
type maintainer struct {
	// controller is the name of the controller, kind and name identify the object, and obj is any object of the kind.
	controller, kind string
	name             types.NamespacedName
	obj              client.Object
	// subscribe receives a function that triggers the controller; nil if the object's events are sufficient.
	subscribe func(look func())
}

// setup adds the controller to the manager. It runs in every replica, and once at the start: without the object, there would be
// no event to start with.
func (m maintainer) setup(mgr manager.Manager, r reconcile.Reconciler) error {
	begin := func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		look := func() { queue.Add(reconcile.Request{NamespacedName: m.name}) }
		if m.subscribe != nil {
			m.subscribe(look)
		}
		look()

		return nil
	}

	err := builder.ControllerManagedBy(mgr).
		Named(m.controller).
		For(m.obj).
		WatchesRawSource(source.Func(begin)).
		WithOptions(controller.Options{
			NeedLeaderElection: new(false),
			RateLimiter:        workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](staleRetry, 10*time.Second),
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("maintain %s %s: %w", m.kind, m.name, err)
	}

	return nil
}
