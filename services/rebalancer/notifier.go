package rebalancer

import (
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
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

func (n *notifier) notify(ring string) {
	n.mu.Lock()
	defer n.mu.Unlock()

	if n.queue != nil {
		n.queue.Add(requestFor(ring))
	}
}
