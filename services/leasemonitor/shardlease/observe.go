package shardlease

import (
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/services/internal/lease"
)

// Informer is the part of an informer that Observe needs.
type Informer interface {
	// AddEventHandler calls the handler for every known object, and then for every change.
	AddEventHandler(handler toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error)
}

// Observe records in ages when each Lease of the informer was last seen to change. It does so until the informer stops, in
// leading and other replicas. The returned function reports whether all Leases that existed at the start have been recorded.
func Observe(informer Informer, ages *lease.Observer, clk clock.PassiveClock) (synced func() bool, err error) {
	seen := func(obj any) {
		if l, ok := obj.(*coordinationv1.Lease); ok {
			ages.Observe(client.ObjectKeyFromObject(l), lease.RecordOf(l), clk.Now())
		}
	}

	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    seen,
		UpdateFunc: func(_, obj any) { seen(obj) },
		DeleteFunc: func(obj any) {
			if name, err := toolscache.DeletionHandlingObjectToName(obj); err == nil {
				ages.Forget(name.AsNamespacedName())
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("observe Leases: %w", err)
	}

	return registration.HasSynced, nil
}
