package rings

import (
	"context"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/labelclaim"
)

// askAgain is when the rebalancer asks again for a permission that it does not have.
const askAgain = 5 * time.Second

// refuseLabel reports whether the rebalancer must not use the label of the ring, because another ring uses it, or
// because the permission is missing. The condition Assigned then contains the reason. It asks the API server only for
// a ring that may collide, and without an engine: nobody can change label and name, and the cache may not contain an
// older ring yet.
func (r *Reconciler) refuseLabel(ctx context.Context, ring *v1alpha1.ClusterRing) (bool, reconcile.Result, error) {
	runs := r.fleet.runs(ring.Name, ring.LabelKeys())

	rings := client.Reader(r.Client)
	if !runs && labelclaim.MayCollide(ring) {
		rings = r.Live
	}

	holder, err := labelclaim.Find(ctx, rings, ring)

	switch {
	case apierrors.IsForbidden(err): // an embedded sharder, whose rights are those of one ring
		return r.refuse(ctx, ring, fmt.Sprintf("the sharder may not list clusterrings.%s, so it cannot know whether another "+
			"ring has the label %s: grant the verb list in a ClusterRole", v1alpha1.GroupVersion.Group, ring.LabelKeys().Shard))
	case err != nil:
		return false, reconcile.Result{}, err
	case holder != "":
		return true, reconcile.Result{}, r.yield(ctx, ring, holder)
	case runs || ring.Spec.ShardLabel == "":
		return false, reconcile.Result{}, nil
	}

	allowed, err := r.mayWrite(ctx, ring.Spec.ShardLabel)
	if err != nil || allowed {
		return false, reconcile.Result{}, err
	}

	return r.refuse(ctx, ring, fmt.Sprintf("the rebalancer may not write the label %s: grant the verb write on %s.%s with "+
		"this name in a ClusterRole with the label %s: \"true\"", ring.Spec.ShardLabel,
		contract.ResourceShardLabels, v1alpha1.GroupVersion.Group, contract.LabelAggregateToRebalancer))
}

// refuse leaves a ring alone until a permission is granted.
func (r *Reconciler) refuse(ctx context.Context, ring *v1alpha1.ClusterRing, why string) (bool, reconcile.Result, error) {
	err := r.explain(ctx, ring, ring.Status.Assignment, notAssigned(v1alpha1.ReasonAssignmentFailed, why))

	return true, reconcile.Result{RequeueAfter: askAgain}, err
}

// mayWrite reports whether the rebalancer has the permission for a label that does not begin as ours do. The admission
// policy that restricts the rebalancer demands the same.
func (r *Reconciler) mayWrite(ctx context.Context, label string) (bool, error) {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: v1alpha1.GroupVersion.Group, Resource: contract.ResourceShardLabels, Name: label, Verb: "write",
		},
	}}
	if err := r.Client.Create(ctx, review); err != nil {
		return false, fmt.Errorf("ask for the permission to write the label %s: %w", label, err)
	}

	return review.Status.Allowed, nil
}

// yield leaves a ring alone whose label another ring uses: labels on objects are those of the other ring.
func (r *Reconciler) yield(ctx context.Context, ring *v1alpha1.ClusterRing, holder string) error {
	r.fleet.stop(ring.Name)

	switch {
	case ring.DeletionTimestamp.IsZero():
		return r.explain(ctx, ring, nil, labelclaim.Condition(v1alpha1.ConditionAssigned, ring, holder))
	case controllerutil.ContainsFinalizer(ring, contract.FinalizerRebalancer):
		return r.finish(ctx, ring)
	}

	return nil
}
