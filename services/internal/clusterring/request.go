package clusterring

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Request returns the request for the ring of the given name, for controllers that work ring by ring.
func Request(ring string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: ring}}
}

// Requests returns requests for all rings that the reader has, a cache. It returns nil if the reader fails: the cache
// is being stopped then, and this process with it.
func Requests(ctx context.Context, rings client.Reader) []reconcile.Request {
	list := &v1alpha1.ClusterRingList{}
	if err := rings.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}

	requests := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, Request(list.Items[i].Name))
	}

	return requests
}

// ByLabel is a handler.MapFunc. It returns the request for the ring that the object's label names, whether the ring
// exists or not; nil if there is no label. An update is mapped by its old and its new object, so an object that leaves
// a ring for another concerns both.
func ByLabel(_ context.Context, obj client.Object) []reconcile.Request {
	if ring := obj.GetLabels()[contract.LabelClusterRing]; ring != "" {
		return []reconcile.Request{Request(ring)}
	}

	return nil
}

// Source returns a source of requests. The controller calls start once, when it begins, with functions that request one
// ring by its name, and all rings that the reader has, a cache; both may be called at any time. The controller works
// when start has returned, and fails with its error.
func Source(
	rings client.Reader, start func(ctx context.Context, one func(ring string), all func()) error,
) source.Source {
	return source.Func(func(ctx context.Context, q queue) error {
		return start(ctx, func(ring string) { q.Add(Request(ring)) }, func() {
			for _, request := range Requests(ctx, rings) {
				q.Add(request)
			}
		})
	})
}
