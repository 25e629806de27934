package shard

import (
	"context"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// keyQueue is the queue of a controller that does not use controller-runtime.
type keyQueue struct {
	workqueue.TypedRateLimitingInterface[types.NamespacedName]
}

// queueOf returns a queue of all events of the informer's objects.
func (f *fixture) queueOf(informer cache.SharedIndexInformer) *keyQueue {
	f.Helper()

	q := &keyQueue{workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[types.NamespacedName]())}
	f.Cleanup(q.ShutDown)

	add := func(obj any) {
		if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {
			q.Add(key.AsNamespacedName())
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) }, DeleteFunc: add,
	})
	require.NoError(f, err)

	return q
}

// run processes keys until the context ends.
func (q *keyQueue) run(ctx context.Context, handle func(context.Context, types.NamespacedName) (time.Duration, error)) error {
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			for q.next(ctx, handle) {
			}
		})
	}
	<-ctx.Done()
	q.ShutDown()
	workers.Wait()

	return nil
}

func (q *keyQueue) next(ctx context.Context, handle func(context.Context, types.NamespacedName) (time.Duration, error)) bool {
	key, stopped := q.Get()
	if stopped {
		return false
	}
	defer q.Done(key)

	switch again, err := handle(ctx, key); {
	case err != nil:
		q.AddRateLimited(key)
	case again > 0:
		q.AddAfter(key, again)
	default:
		q.Forget(key)
	}

	return true
}
