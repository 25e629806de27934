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

// Leases measures how long ago this server saw each Lease renewed. It is safe for concurrent use.
type Leases struct {
	// Clock is that of the service. Required.
	Clock clock.PassiveClock

	seen sync.Map // of seen, by types.NamespacedName
}

// seen is a Lease as the watch has shown it last, and since when. renewed reports whether it has changed since it was
// first seen.
type seen struct {
	record  lease.Record
	state   lease.State
	since   time.Time
	renewed bool
}

// Of returns the time since this server last saw the Lease change, or since it first saw the Lease; zero if the watch
// has not shown it. atLeast is true if the server has not seen the Lease change, so that the last renewal may be longer
// ago.
func (l *Leases) Of(id types.NamespacedName) (age time.Duration, atLeast bool) {
	last, known := l.last(id)
	if !known {
		return 0, true
	}

	return max(l.Clock.Since(last.since), 0), !last.renewed
}

func (l *Leases) last(id types.NamespacedName) (last seen, known bool) {
	value, known := l.seen.Load(id)
	last, _ = value.(seen)

	return last, known
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

// leaseHandler handles Leases, one event after the other. The cache contains a change before the handler is called.
func (l *Leases) leaseHandler(changed func(ring string)) toolscache.ResourceEventHandler {
	saw := func(obj any) {
		shown, ok := obj.(*coordinationv1.Lease)
		if !ok {
			return
		}

		id := client.ObjectKeyFromObject(shown)
		before, known := l.last(id)
		is := seen{lease.RecordOf(shown), stateOf(shown), before.since, before.renewed}

		if !known || !before.record.Equal(is.record) {
			is.since, is.renewed = l.Clock.Now(), known
		}

		l.seen.Store(id, is)

		if is.state != before.state {
			changed(shown.Labels[contract.LabelClusterRing])
		}
	}

	return toolscache.ResourceEventHandlerFuncs{AddFunc: saw, UpdateFunc: func(_, obj any) { saw(obj) },
		DeleteFunc: func(obj any) {
			if name, err := toolscache.DeletionHandlingObjectToName(obj); err == nil {
				l.seen.Delete(name.AsNamespacedName())
			}
		}}
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
