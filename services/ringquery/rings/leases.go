package rings

import (
	"context"
	"fmt"
	"slices"
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

// Leases records the labelled state of each Lease, and when this server saw the Lease renewed.
// Create it with [NewLeases]. It is safe for concurrent use.
type Leases struct {
	clock    clock.PassiveClock
	observer lease.Observer

	mu   sync.RWMutex
	seen map[types.NamespacedName]seenLease
}

type seenLease struct {
	record lease.Record
	// changed is true if the record has changed since the Lease was first seen.
	changed bool
	state   lease.State
	version string // of the Lease
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
	return &Leases{clock: clk, seen: map[types.NamespacedName]seenLease{}}
}

// Of returns the labelled state of a Lease (empty: there is none) and its age. The age of an unknown Lease is at least
// zero.
func (l *Leases) Of(id types.NamespacedName) (lease.State, Age) {
	l.mu.RLock()
	defer l.mu.RUnlock()

	s, ok := l.seen[id]
	if !ok {
		return "", Age{AtLeast: true}
	}

	return s.state, Age{Time: l.observer.Observe(id, s.record, l.clock.Now()), AtLeast: !s.changed}
}

// shows reports whether the record is that of this version of the Lease.
func (l *Leases) shows(id types.NamespacedName, version string) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()

	s, ok := l.seen[id]

	return ok && s.version == version
}

// upsert records a Lease, and reports whether its labelled state has changed.
func (l *Leases) upsert(obj *coordinationv1.Lease) (changed bool) {
	id := types.NamespacedName{Namespace: obj.Namespace, Name: obj.Name}
	record := lease.RecordOf(obj)

	l.mu.Lock()
	defer l.mu.Unlock()

	before, known := l.seen[id]
	now := seenLease{
		record:  record,
		changed: before.changed || known && !before.record.Equal(record),
		state:   lease.State(obj.Labels[contract.LabelState]),
		version: obj.ResourceVersion,
	}
	l.seen[id] = now
	l.observer.Observe(id, record, l.clock.Now())

	return before.state != now.state
}

// remove forgets a Lease.
func (l *Leases) remove(id types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()

	delete(l.seen, id)
	l.observer.Forget(id)
}

// Follow keeps the record up to date. It calls changed with the name of each ring that has changed, or of which the
// labelled state of a shard has changed. membership.Index reports changes of the members. Follow does not block. synced
// reports whether all initial objects have been seen.
func (l *Leases) Follow(
	ctx context.Context, informers cache.Informers, changed func(ring string),
) (synced func() bool, err error) {
	var watched []toolscache.ResourceEventHandlerRegistration

	for obj, handler := range map[client.Object]toolscache.ResourceEventHandler{
		&coordinationv1.Lease{}: l.leaseHandler(changed), &v1alpha1.ClusterRing{}: ringHandler(changed),
	} {
		informer, err := informers.GetInformer(ctx, obj)
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", obj, err)
		}

		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", obj, err)
		}

		watched = append(watched, registration)
	}

	return func() bool {
		return !slices.ContainsFunc(watched,
			func(r toolscache.ResourceEventHandlerRegistration) bool { return !r.HasSynced() })
	}, nil
}

func (l *Leases) leaseHandler(changed func(ring string)) toolscache.ResourceEventHandler {
	upsert := func(obj any) {
		if o, ok := obj.(*coordinationv1.Lease); ok && l.upsert(o) {
			changed(o.Labels[contract.LabelClusterRing])
		}
	}

	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    upsert,
		UpdateFunc: func(_, obj any) { upsert(obj) },
		DeleteFunc: func(obj any) {
			if name, err := toolscache.DeletionHandlingObjectToName(obj); err == nil {
				l.remove(name.AsNamespacedName())
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
