package rings

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
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
	clock clock.PassiveClock

	mu       sync.Mutex
	observer lease.Observer
	seen     map[types.NamespacedName]seen
}

// seen is a Lease as the watch has shown it last. renewed reports whether it has changed since it was first seen.
type seen struct {
	record  lease.Record
	renewed bool
}

// Age is how long ago a Lease was renewed, by the clock of this server.
type Age struct {
	// Time since this server last saw the Lease change, or since it first saw the Lease.
	Time time.Duration
	// AtLeast is true if the server has not seen the Lease change, so that the last renewal may be longer ago.
	AtLeast bool
}

// NewLeases returns an empty record that uses the given clock.
func NewLeases(clk clock.PassiveClock) *Leases {
	return &Leases{clock: clk, seen: map[types.NamespacedName]seen{}}
}

// Of returns the age of a Lease; zero if the watch has not shown it.
func (l *Leases) Of(id types.NamespacedName) Age {
	l.mu.Lock()
	defer l.mu.Unlock()

	last, known := l.seen[id]
	if !known {
		return Age{AtLeast: true}
	}

	return Age{Time: l.observer.Observe(id, last.record, l.clock.Now()), AtLeast: !last.renewed}
}

// saw records a Lease that the watch has shown.
func (l *Leases) saw(obj *coordinationv1.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()

	id, is := client.ObjectKeyFromObject(obj), lease.RecordOf(obj)
	before, known := l.seen[id]
	l.seen[id] = seen{record: is, renewed: before.renewed || known && !before.record.Equal(is)}
	l.observer.Observe(id, is, l.clock.Now())
}

// forget drops a Lease that is gone.
func (l *Leases) forget(id types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()

	delete(l.seen, id)
	l.observer.Forget(id)
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
		l.saw(obj)

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
			saw(is, stateOf(was))
		},
		DeleteFunc: func(obj any) {
			if name, err := toolscache.DeletionHandlingObjectToName(obj); err == nil {
				l.forget(name.AsNamespacedName())
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
