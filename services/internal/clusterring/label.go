package clusterring

import (
	"cmp"
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// wholeName is the longest name of a ring that its suffix is sure to contain: the suffixes of two different names of at
// most this length differ.
const wholeName = 42

// mayCollide reports whether somebody may have chosen name or spec of the ring so that it has the label or the suffix
// of another ring.
func mayCollide(ring *v1alpha1.ClusterRing) bool {
	return ring.Spec.ShardLabel != "" || len(ring.Name) > wholeName
}

// Older returns the name of the ring that uses the label of the given ring instead of it; empty if the ring may use its
// label itself. The ring does not have to be one of all.
func Older(ring *v1alpha1.ClusterRing, all []v1alpha1.ClusterRing) string {
	first := ring

	for i := range all {
		if other := &all[i]; collide(other, ring) && compare(other, first) < 0 {
			first = other
		}
	}

	if first.Name == ring.Name {
		return ""
	}

	return first.Name
}

// collide reports whether two rings would use the same labels, or the same names of what is registered for them.
func collide(a, b *v1alpha1.ClusterRing) bool {
	return a.Spec.ShardLabel != "" && a.Spec.ShardLabel == b.Spec.ShardLabel ||
		max(len(a.Name), len(b.Name)) > wholeName && contract.RingSuffix(a.Name) == contract.RingSuffix(b.Name)
}

// compare orders rings by their age. The API server stores times of creation in seconds.
func compare(a, b *v1alpha1.ClusterRing) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// FindOlder returns what [Older] does for the rings that the reader has. It returns the reader's error.
func FindOlder(ctx context.Context, rings client.Reader, ring *v1alpha1.ClusterRing) (string, error) {
	list := &v1alpha1.ClusterRingList{}
	if err := rings.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("find the rings with the label of ring %s: %w", ring.Name, err)
	}

	return Older(ring, list.Items), nil
}

// LabelInUse explains to people that an older ring uses the label of the ring.
func LabelInUse(ring *v1alpha1.ClusterRing, older string) string {
	same, another := "uses the same spec.shardLabel "+ring.Spec.ShardLabel, "shardLabel"
	if suffix := contract.RingSuffix(ring.Name); suffix == contract.RingSuffix(older) {
		same, another = "has the same suffix "+suffix+" of labels and names", "name"
	}

	return fmt.Sprintf("ring %s, which is older, %s, so no service acts for this ring: "+
		"delete this ring and create it with another %s, or delete ring %s", older, same, another, older)
}

// LabelInUseCondition returns the condition of the given type, False, of a ring whose label an older ring uses.
func LabelInUseCondition(kind string, ring *v1alpha1.ClusterRing, older string) metav1.Condition {
	return metav1.Condition{
		Type: kind, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonShardLabelInUse, Message: LabelInUse(ring, older),
	}
}

// MayUseLabel returns the reason and the message of the condition Assigned of a ring whose label the sharder must not
// use, because an older ring uses it, or because the permission is missing; empty if it may use the label, or does not
// need it. Nobody can change label and name of a ring, so it asks the API server only before the sharder works on the
// ring, and only if the ring may collide: the cache may not contain an older ring yet.
func (t *Tenure) MayUseLabel(ctx context.Context, ring *v1alpha1.ClusterRing) (reason, message string, err error) {
	if next := t.Sharder.Next(ring); next != Work && next != Claim {
		return "", "", nil
	}

	works, rings := t.Works(ring), client.Reader(t.Client)
	if !works && mayCollide(ring) {
		rings = t.Live
	}

	older, err := FindOlder(ctx, rings, ring)

	switch {
	case apierrors.IsForbidden(err): // an embedded sharder, whose rights are those of one ring
		return v1alpha1.ReasonAssignmentFailed, fmt.Sprintf("the sharder may not list clusterrings.%s, so it cannot know "+
			"whether another ring has the label %s: grant the verb list in a ClusterRole",
			v1alpha1.GroupVersion.Group, ring.LabelKeys().Shard), nil
	case err != nil:
		return "", "", err
	case older != "":
		return v1alpha1.ReasonShardLabelInUse, LabelInUse(ring, older), nil
	case works || ring.Spec.ShardLabel == "":
		return "", "", nil
	}

	// The admission policy that restricts the rebalancer demands the same for a label that does not begin as ours do.
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: v1alpha1.GroupVersion.Group, Resource: contract.ResourceShardLabels,
			Name: ring.Spec.ShardLabel, Verb: "write",
		},
	}}
	if err := t.Client.Create(ctx, review); err != nil {
		return "", "", fmt.Errorf("ask for the permission to write the label %s: %w", ring.Spec.ShardLabel, err)
	}

	if review.Status.Allowed {
		return "", "", nil
	}

	return v1alpha1.ReasonAssignmentFailed, fmt.Sprintf("the rebalancer may not write the label %s: grant the verb write "+
		"on %s.%s with this name in a ClusterRole with the label %s: \"true\"", ring.Spec.ShardLabel,
		contract.ResourceShardLabels, v1alpha1.GroupVersion.Group, contract.LabelAggregateToRebalancer), nil
}

// Rivals returns a handler that requests, for a ring that appears or disappears, all other rings with the same label or
// suffix. Updates concern nobody else: spec.shardLabel and the age of a ring do not change, unless another ring has got
// its name. The reader is a cache.
func Rivals(rings client.Reader) handler.EventHandler {
	all := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, obj client.Object) (found []reconcile.Request) {
		ring, ok := obj.(*v1alpha1.ClusterRing)
		list := &v1alpha1.ClusterRingList{}

		if err := rings.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil || !ok {
			return nil // the cache is being stopped, and this process with it
		}

		for i := range list.Items {
			if other := &list.Items[i]; other.Name != ring.Name && collide(other, ring) {
				found = append(found, Request(other.Name))
			}
		}

		return found
	})

	return handler.Funcs{
		CreateFunc: all.Create,
		DeleteFunc: all.Delete,
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			if e.ObjectOld.GetUID() != e.ObjectNew.GetUID() {
				all.Update(ctx, e, q)
			}
		},
	}
}
