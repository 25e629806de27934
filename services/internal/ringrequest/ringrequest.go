// Package ringrequest makes the requests of controllers that work ring by ring.
package ringrequest

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// For returns the request for the ring of the given name.
func For(ring string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: ring}}
}

// All returns requests for all rings that the reader has, a cache. It returns nil if the reader fails: the cache is being
// stopped then, and this process with it.
func All(ctx context.Context, rings client.Reader) []reconcile.Request {
	list := &v1alpha1.ClusterRingList{}
	if err := rings.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}

	requests := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, For(list.Items[i].Name))
	}

	return requests
}

// ByLabel is a handler.MapFunc. It returns the request for the ring that the object's label names, whether the ring exists or not; nil if there is
// no label. An update is mapped by its old and its new object, so an object that leaves a ring for another concerns both.
func ByLabel(_ context.Context, obj client.Object) []reconcile.Request {
	if ring := obj.GetLabels()[contract.LabelClusterRing]; ring != "" {
		return []reconcile.Request{For(ring)}
	}

	return nil
}
