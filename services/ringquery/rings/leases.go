package rings

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
)

// Leases measures how long ago this server saw each Lease renewed. Create it with [NewLeases]. It is safe for
// concurrent use.
type Leases struct {
	clock    clock.PassiveClock
	observer lease.Observer
	// renewed contains the names of the Leases that have changed since this server first saw them.
	renewed sync.Map
}

// Age is how long ago a Lease was renewed, by the clock of this server.
type Age struct {
	// Time since this server last saw the Lease change, or since it first saw the Lease.
	Time time.Duration
	// AtLeast is true if the server has not seen the Lease change, so that the last renewal may be longer ago.
	AtLeast bool
}

// NewLeases returns an empty record that uses the given clock.
func NewLeases(clk clock.PassiveClock) *Leases { return &Leases{clock: clk} }

// Of returns the age of a Lease.
func (l *Leases) Of(obj *coordinationv1.Lease) Age {
	id := client.ObjectKeyFromObject(obj)
	_, renewed := l.renewed.Load(id)

	return Age{Time: l.observer.Observe(id, lease.RecordOf(obj), l.clock.Now()), AtLeast: !renewed}
}

// stateOf returns the state that the lease monitor last wrote to a Lease. Empty: there is none.
func stateOf(obj client.Object) lease.State { return lease.State(obj.GetLabels()[contract.LabelState]) }

// Follow keeps the record up to date. It calls changed with the name of each ring that has changed, or of which the
// labelled state of a shard has changed. membership.Index reports changes of the members. Follow does not block.
func (l *Leases) Follow(ctx context.Context, informers cache.Informers, changed func(ring string)) error {
	for obj, handler := range map[client.Object]toolscache.ResourceEventHandler{
		&coordinationv1.Lease{}: l.leaseHandler(changed), &v1alpha1.ClusterRing{}: ringHandler(changed),
	} {
		informer, err := informers.GetInformer(ctx, obj)
		if err == nil {
			_, err = informer.AddEventHandler(handler)
		}

		if err != nil {
			return fmt.Errorf("watch %T: %w", obj, err)
		}
	}

	return nil
}

// leaseHandler handles Leases. The cache contains a change before the handler is called.
func (l *Leases) leaseHandler(changed func(ring string)) toolscache.ResourceEventHandler {
	saw := func(obj *coordinationv1.Lease, was lease.State) {
		l.Of(obj)

		if stateOf(obj) != was {
			changed(obj.Labels[contract.LabelClusterRing])
		}
	}

	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if is, ok := obj.(*coordinationv1.Lease); ok {
				saw(is, "")
			}
		},
		UpdateFunc: func(before, obj any) {
			was, is := before.(*coordinationv1.Lease), obj.(*coordinationv1.Lease) //nolint:forcetypeassert // of this informer
			if !lease.RecordOf(was).Equal(lease.RecordOf(is)) {
				l.renewed.Store(client.ObjectKeyFromObject(is), true)
			}

			saw(is, stateOf(was))
		},
		DeleteFunc: func(obj any) {
			if name, err := toolscache.DeletionHandlingObjectToName(obj); err == nil {
				l.observer.Forget(name.AsNamespacedName())
				l.renewed.Delete(name.AsNamespacedName())
			}
		},
	}
}

// ringHandler tells of every event of a ring. Everyone who watches the ring compares what it looks like.
func ringHandler(changed func(ring string)) toolscache.ResourceEventHandler {
	tell := func(obj any) {
		if name, err := toolscache.DeletionHandlingObjectToName(obj); err == nil {
			changed(name.Name)
		}
	}

	return toolscache.ResourceEventHandlerFuncs{AddFunc: tell, UpdateFunc: func(_, obj any) { tell(obj) },
		DeleteFunc: tell}
}
