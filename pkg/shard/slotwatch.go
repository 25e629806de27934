package shard

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// watch observes the Leases of the ring until the context ends. It returns when it has seen all of them, or the context has ended. The channel
// is closed when nothing runs any more.
func (c *claimer) watch(ctx context.Context) <-chan struct{} {
	selector := labels.SelectorFromSet(labels.Set{contract.LabelClusterRing: c.options.Ring}).String()
	leases := c.watching
	source := &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selector

			list, err := leases.List(ctx, o)
			if err != nil && ctx.Err() == nil {
				c.log.Error(err, "Could not list the Leases of the ring; a shard with slots needs list and watch on leases in its namespace")
			}

			return list, err //nolint:wrapcheck // the reflector looks for Gone
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector

			return leases.Watch(ctx, o)
		},
	}
	_, informer := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
		ListerWatcher: source, ObjectType: &coordinationv1.Lease{},
		Handler: toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { c.observe(obj, false) },
			UpdateFunc: func(_, obj any) { c.observe(obj, false) },
			DeleteFunc: func(obj any) { c.observe(obj, true) },
		},
	})
	ended := make(chan struct{})

	go func() {
		defer close(ended)

		informer.RunWithContext(ctx)
	}()

	toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced)

	c.mu.Lock()
	c.began = c.clock.Now()
	c.mu.Unlock()

	return ended
}

// observe notes a Lease, and that it was seen now.
func (c *claimer) observe(obj any, gone bool) {
	if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}

	lease, ok := obj.(*coordinationv1.Lease)
	if !ok {
		return
	}

	c.mu.Lock()
	delete(c.refused, lease.Name)
	delete(c.hidden, lease.Name)

	if o, now := c.leases[lease.Name], c.clock.Now(); gone {
		c.leases[lease.Name] = o.without(now)
	} else {
		c.leases[lease.Name] = o.then(lease, now)
	}

	c.mu.Unlock()

	select {
	case c.changed <- struct{}{}:
	default:
	}
}
