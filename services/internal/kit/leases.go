package kit

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	coordinationv1 "k8s.io/api/coordination/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/clusterring/clusterring/services/internal/membership"
)

// WatchLeases keeps the index up to date with the Leases of shards, and makes /readyz wait until the index has seen all
// that existed when the watch began. Call it in [Service.Setup]. It returns at once; the watch ends with the manager.
// It is for services that read Leases from the cache, too; for others there is [FollowLeases].
func WatchLeases(ctx context.Context, rt *Runtime, index *membership.Index) error {
	informer, err := rt.Manager.GetCache().GetInformer(ctx, &coordinationv1.Lease{})
	if err != nil {
		return fmt.Errorf("watch the Leases of shards: %w", err)
	}
	registration, err := informer.AddEventHandler(leaseHandler(index))
	if err != nil {
		return fmt.Errorf("watch the Leases of shards: %w", err)
	}
	rt.awaitable(registration.HasSyncedChecker())
	return nil
}

// awaitable has AwaitLeases and /readyz wait for the checker.
func (rt *Runtime) awaitable(leases toolscache.DoneChecker) {
	rt.leases = leases
	rt.AddReady("shard-leases", func(*http.Request) error {
		if !toolscache.IsDone(leases) {
			return errors.New("the Leases of shards have not been read yet")
		}
		return nil
	})
}

// AwaitLeases waits until the index given to [WatchLeases] or [FollowLeases] has seen all Leases that existed when the watch began, so that
// nobody takes a shard for dead that was merely not read yet. It returns an error if ctx ends before.
func (rt *Runtime) AwaitLeases(ctx context.Context) error {
	if rt.leases == nil {
		return errors.New("nobody watches the Leases of shards: call WatchLeases first")
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("wait for the Leases of shards: %w", ctx.Err())
	case <-rt.leases.Done():
		return nil
	}
}

// leaseHandler tells the index about every Lease that appears, changes or goes.
func leaseHandler(index *membership.Index) toolscache.ResourceEventHandler {
	upsert := func(obj any) {
		if l, ok := obj.(*coordinationv1.Lease); ok {
			index.Upsert(l)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    upsert,
		UpdateFunc: func(_, obj any) { upsert(obj) },
		DeleteFunc: func(obj any) {
			if name, err := toolscache.DeletionHandlingObjectToName(obj); err == nil {
				index.Delete(name.AsNamespacedName())
			}
		},
	}
}
