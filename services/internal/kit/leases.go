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

// WatchLeases keeps the index up to date with the Leases of shards. /readyz waits until the index has seen all Leases that
// existed when the watch began. Call WatchLeases in [Service.Setup]; it returns immediately, and the watch ends with the manager.
// Use it in services that also read Leases from the cache, and [FollowLeases] in others.
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

// AwaitLeases waits until the index given to [WatchLeases] or [FollowLeases] has seen all Leases that existed when the watch
// began. Without this wait, a shard whose Lease was not read yet would count as dead. It returns an error if ctx ends before.
func (rt *Runtime) AwaitLeases(ctx context.Context) error {
	if rt.leases == nil {
		return errors.New("the Leases of shards are not watched: call WatchLeases first")
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
