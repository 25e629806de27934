package rebalancer

import (
	"context"
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// notifier lets others have a ring reconciled, once there is a queue. What comes before needs no notice: every ring is
// reconciled when the controller starts.
type notifier struct {
	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
}

func (n *notifier) set(q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	n.mu.Lock()
	defer n.mu.Unlock()

	n.queue = q
}

// all has every ring reconciled that the reader knows. One that it does not know yet has still to be reconciled for the first time.
func (n *notifier) all(ctx context.Context, rings client.Reader) {
	list := &v1alpha1.ClusterRingList{}
	if err := rings.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		if ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "Rings are not told that the API server serves something else now")
		}

		return
	}

	for i := range list.Items {
		n.notify(list.Items[i].Name)
	}
}

func (n *notifier) notify(ring string) {
	n.mu.Lock()
	defer n.mu.Unlock()

	if n.queue != nil {
		n.queue.Add(requestFor(ring))
	}
}
