package shardleases

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/membership"
)

// Watch keeps the index up to date with the Leases of shards, and makes /readyz wait until the index has seen all
// that existed when the watch began. Call it in [kit.Service.Setup]. It returns at once; the watch ends with the manager.
// It is for services that read Leases from the cache, too; for others there is [Follow].
func Watch(ctx context.Context, rt *kit.Runtime, index *membership.Index) (*Synced, error) {
	informer, err := rt.Manager.GetCache().GetInformer(ctx, &coordinationv1.Lease{})
	if err != nil {
		return nil, fmt.Errorf("watch the Leases of shards: %w", err)
	}

	registration, err := informer.AddEventHandler(leaseHandler(index))
	if err != nil {
		return nil, fmt.Errorf("watch the Leases of shards: %w", err)
	}

	return synced(rt, registration.HasSyncedChecker()), nil
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
