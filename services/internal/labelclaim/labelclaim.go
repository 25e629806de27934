// Package labelclaim decides which of the rings with the same label, or with the same suffix of labels and names, may use them: the oldest one. Rings have the
// same label by spec.shardLabel, and the same suffix if somebody has searched for such names: see [contract.RingSuffix].
//
// Every service asks it before it acts for a ring. A ring that may not use its label is left alone: nothing is assigned, moved, or released
// for it, because the labels on objects are those of the other ring.
//
// # Invariants
//
//  1. Of all rings with one label, exactly one may use it, whatever the order in which they were seen: the one that was created first, and of
//     those that were created in the same second, the one whose name comes first.
//  2. A ring that is being deleted keeps its label until it is gone, because objects still carry it.
//  3. Rings with short names, and without spec.shardLabel, may always use their labels: the suffixes contain their names.
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

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/ringrequest"
)

// wholeName is the longest name of a ring that its suffix is sure to contain: the suffixes of two different names of at most this length differ.
const wholeName = 42

// MayCollide reports whether somebody may have chosen name or spec of the ring so that it has the label or the suffix of another ring.
func MayCollide(ring *v1alpha1.ClusterRing) bool {
	return ring.Spec.ShardLabel != "" || len(ring.Name) > wholeName
}

// Holder returns the name of the ring that uses the label of the given ring instead of it; empty if the ring may use its label itself. The
// ring does not have to be one of all.
func Holder(ring *v1alpha1.ClusterRing, all []v1alpha1.ClusterRing) string {
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

// Find returns the [Holder] of the ring's label among the rings that the reader has. It returns the reader's error.
func Find(ctx context.Context, rings client.Reader, ring *v1alpha1.ClusterRing) (string, error) {
	list := &v1alpha1.ClusterRingList{}
	if err := rings.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("find the rings with the label of ring %s: %w", ring.Name, err)
	}

	return Holder(ring, list.Items), nil
}

// Message explains to people that the holder uses the label of the ring.
func Message(ring *v1alpha1.ClusterRing, holder string) string {
	same, another := "uses the same spec.shardLabel "+ring.Spec.ShardLabel, "shardLabel"
	if suffix := contract.RingSuffix(ring.Name); suffix == contract.RingSuffix(holder) {
		same, another = "has the same suffix "+suffix+" of labels and names", "name"
	}

	return fmt.Sprintf("ring %s, which is older, %s, so no service acts for this ring: delete this ring and create it with another %s, or delete ring %s",
		holder, same, another, holder)
}

// Condition returns the condition of the given type, False, of a ring whose label the holder uses.
func Condition(kind string, ring *v1alpha1.ClusterRing, holder string) metav1.Condition {
	return metav1.Condition{
		Type: kind, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonShardLabelInUse, Message: Message(ring, holder),
	}
}

// Rivals returns a handler that requests, for a ring that appears or disappears, all other rings with the same label or suffix. Use it with
// [Changes]. The reader is a cache.
func Rivals(rings client.Reader) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, obj client.Object) []reconcile.Request {
		ring, ok := obj.(*v1alpha1.ClusterRing)
		if !ok {
			return nil
		}

		list := &v1alpha1.ClusterRingList{}
		if err := rings.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil // the cache is being stopped, and this process with it
		}

		var requests []reconcile.Request

		for i := range list.Items {
			if other := &list.Items[i]; other.Name != ring.Name && collide(other, ring) {
				requests = append(requests, ringrequest.For(other.Name))
			}
		}

		return requests
	})
}

// Changes leaves out updates of rings: spec.shardLabel and the age of a ring do not change, unless another ring has got its name.
var Changes = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() }}
