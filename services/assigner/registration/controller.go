package registration

import (
	"context"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
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
	"github.com/clusterring/clusterring/services/internal/ringrequest"
)

// catchUp is how long the cache gets to bring what somebody else has written meanwhile.
const catchUp = 50 * time.Millisecond

// bundlePatience is how long after its start a leader waits for the bundle, and for the list of rings, before it calls that a failure.
const bundlePatience = 10 * time.Second

// concurrency is how many rings are looked after at a time.
const concurrency = 20

// listPatience is how long admission policies may not know a new ring before that is a failure.
const listPatience = 5 * time.Second

// SetupWithManager adds the reconciler to a manager. It runs only in the leader.
func (r *Reconciler) SetupWithManager(mgr manager.Manager) error {
	err := builder.ControllerManagedBy(mgr).
		Named("registration").
		For(&v1alpha1.ClusterRing{}, builder.WithPredicates(specChanged)).
		Watches(&v1alpha1.ClusterRing{}, labelclaim.Rivals(r.Client), builder.WithPredicates(labelclaim.Changes)).
		Watches(&admissionregistrationv1.MutatingWebhookConfiguration{}, handler.EnqueueRequestsFromMapFunc(ringrequest.ByLabel)).
		Watches(&admissionregistrationv1.ValidatingAdmissionPolicyBinding{}, handler.EnqueueRequestsFromMapFunc(ringrequest.ByLabel)).
		Watches(&v1alpha1.PolicyParameter{}, handler.EnqueueRequestsFromMapFunc(ringrequest.ByLabel)).
		Watches(&admissionregistrationv1.ValidatingAdmissionPolicy{}, handler.EnqueueRequestsFromMapFunc(r.allRings)).
		WatchesRawSource(source.Func(r.changes)).
		WithOptions(controller.Options{
			RateLimiter: kit.RateLimiter[reconcile.Request](),
			// Each ring may wait for a probe that is not answered.
			MaxConcurrentReconciles: concurrency,
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("register webhooks: %w", err)
	}

	return nil
}

// specChanged leaves out changes of status, most of which the other services write.
var specChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
		e.ObjectOld.GetUID() != e.ObjectNew.GetUID() ||
		e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero() ||
		e.ObjectOld.GetAnnotations()[contract.AnnotationUnboundShards] != e.ObjectNew.GetAnnotations()[contract.AnnotationUnboundShards]
}}

// changes queues rings whose resources became known or changed, and all rings when the bundle has changed.
func (r *Reconciler) changes(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.started = r.Status.Clock.Now()

	r.Rings.Subscribe(func(ring string) { queue.Add(ringrequest.For(ring)) })
	r.Bundle.Subscribe(func() {
		for _, ring := range r.allRings(ctx, nil) {
			queue.Add(ring)
		}
	})

	return nil
}

// allRings maps what concerns all rings to all rings.
func (r *Reconciler) allRings(ctx context.Context, _ client.Object) []reconcile.Request {
	return ringrequest.All(ctx, r.Client)
}
