package rings

import (
	"context"
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/ringrequest"
)

// notifier lets other components trigger the reconciliation of a ring when there is a queue. Before that, no trigger is
// needed: every ring is reconciled when the controller starts.
type notifier struct {
	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
}

func (n *notifier) set(q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	n.mu.Lock()
	defer n.mu.Unlock()

	n.queue = q
}

// all reconciles every ring that the reader knows. A ring that it does not know yet will be reconciled for the first time anyway.
func (n *notifier) all(ctx context.Context, rings client.Reader) {
	list := &v1alpha1.ClusterRingList{}
	if err := rings.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		if ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "Cannot update rings after the API server's resources have changed")
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
		n.queue.Add(ringrequest.For(ring))
	}
}
