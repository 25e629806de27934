// Package labelclaim decides which of the rings with the same spec.shardLabel may use that label: the oldest one.
//
// Every service asks it before it acts for a ring. A ring that may not use its label is left alone: nothing is assigned, moved, or released
// for it, because the labels on objects are those of the other ring.
//
// # Invariants
//
//  1. Of all rings with one label, exactly one may use it, whatever the order in which they were seen: the one that was created first, and of
//     those that were created in the same second, the one whose name comes first.
//  2. A ring that is being deleted keeps its label until it is gone, because objects still carry it.
//  3. A ring without spec.shardLabel may always use its label: no other ring can have the same.
package labelclaim

import (
	"cmp"
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/ringrequest"
)

// Holder returns the name of the ring that uses the label of the given ring instead of it; empty if the ring may use its label itself. The
// ring does not have to be one of all.
func Holder(ring *v1alpha1.ClusterRing, all []v1alpha1.ClusterRing) string {
	if ring.Spec.ShardLabel == "" {
		return ""
	}

	first := ring

	for i := range all {
		if other := &all[i]; other.Spec.ShardLabel == ring.Spec.ShardLabel && compare(other, first) < 0 {
			first = other
		}
	}

	if first.Name == ring.Name {
		return ""
	}

	return first.Name
}

// compare orders rings by their age. The API server stores times of creation in seconds.
func compare(a, b *v1alpha1.ClusterRing) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// Find returns the [Holder] of the ring's label among the rings that the reader has. It does not read anything for a ring without
// spec.shardLabel. It returns the reader's error.
func Find(ctx context.Context, rings client.Reader, ring *v1alpha1.ClusterRing) (string, error) {
	if ring.Spec.ShardLabel == "" {
		return "", nil
	}

	list := &v1alpha1.ClusterRingList{}
	if err := rings.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("find the rings with the shardLabel of ring %s: %w", ring.Name, err)
	}

	return Holder(ring, list.Items), nil
}

// Message explains to people that the holder uses the label of the ring.
func Message(ring *v1alpha1.ClusterRing, holder string) string {
	return fmt.Sprintf("ring %s, which is older, uses the same spec.shardLabel %s, so no service acts for this ring: delete this ring and create it "+
		"with another shardLabel, or delete ring %s", holder, ring.Spec.ShardLabel, holder)
}

// Condition returns the condition of the given type, False, of a ring whose label the holder uses.
func Condition(kind string, ring *v1alpha1.ClusterRing, holder string) metav1.Condition {
	return metav1.Condition{
		Type: kind, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonShardLabelInUse, Message: Message(ring, holder),
	}
}

// Rivals returns a handler that requests, for a ring that appears or disappears, all other rings with the same spec.shardLabel. Use it with
// [Changes]. The reader is a cache.
func Rivals(rings client.Reader) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, obj client.Object) []reconcile.Request {
		ring, ok := obj.(*v1alpha1.ClusterRing)
		if !ok || ring.Spec.ShardLabel == "" {
			return nil
		}

		list := &v1alpha1.ClusterRingList{}
		if err := rings.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil // the cache is being stopped, and this process with it
		}

		var requests []reconcile.Request

		for i := range list.Items {
			if other := &list.Items[i]; other.Name != ring.Name && other.Spec.ShardLabel == ring.Spec.ShardLabel {
				requests = append(requests, ringrequest.For(other.Name))
			}
		}

		return requests
	})
}

// Changes leaves out updates of rings: spec.shardLabel and the age of a ring do not change, unless another ring has got its name.
var Changes = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() }}
