package registration

import (
	"context"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
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
		Watches(&v1alpha1.ClusterRing{}, clusterring.Rivals(r.Client)).
		Watches(&admissionregistrationv1.MutatingWebhookConfiguration{}, handler.EnqueueRequestsFromMapFunc(clusterring.ByLabel)).
		Watches(&admissionregistrationv1.ValidatingAdmissionPolicyBinding{}, handler.EnqueueRequestsFromMapFunc(clusterring.ByLabel)).
		Watches(&v1alpha1.PolicyParameter{}, handler.EnqueueRequestsFromMapFunc(clusterring.ByLabel)).
		Watches(&admissionregistrationv1.ValidatingAdmissionPolicy{}, handler.EnqueueRequestsFromMapFunc(r.allRings)).
		WatchesRawSource(clusterring.Source(r.Client, r.changes)).
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

// changes requests rings whose resources became known or changed, and all rings when the bundle has changed.
func (r *Reconciler) changes(_ context.Context, one func(ring string), all func()) error {
	r.started = r.Status.Clock.Now()

	r.Rings.Subscribe(one)
	r.Bundle.Subscribe(all)

	return nil
}

// allRings maps what concerns all rings to all rings.
func (r *Reconciler) allRings(ctx context.Context, _ client.Object) []reconcile.Request {
	return clusterring.Requests(ctx, r.Client)
}
