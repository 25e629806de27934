package shardlease

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/services/internal/lease"
)

// Observe records in ages when each Lease of the informer was last seen to change. It does so until the informer stops,
// in leading and other replicas. The returned function reports whether all Leases that existed at the start have been
// recorded.
func Observe(informer cache.Informer, ages *lease.Observer, clk clock.PassiveClock) (synced func() bool, err error) {
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

// look returns what is known of a Lease now. The caller completes the snapshot with what the Lease does not show.
func look(ages *lease.Observer, l *coordinationv1.Lease, now time.Time) (lease.Snapshot, lease.Seen) {
	record := lease.RecordOf(l)
	seen := ages.Look(client.ObjectKeyFromObject(l), record, now)

	return lease.Snapshot{Shard: l.Name, Record: record, Deleting: !l.DeletionTimestamp.IsZero(), Kept: seen.Kept}, seen
}

const (
	// beat is the shortest time between two heartbeats.
	beat = time.Second
	// beatTimeout is when a heartbeat that is not answered is given up.
	beatTimeout = 2 * time.Second
)

// Heartbeat looks every other second whether Leases can be written, or every second if there are Leases shorter than 10
// s. It tells [lease.Sight] when shards could renew and renewals could be seen, which a silent watch does not.
//
// All replicas share one Lease, which belongs to no shard. A look reads it, and writes it if nobody has since the last
// look. This is the total cost for all rings and shards: a read per replica, and a write. A read alone shows nothing:
// with etcd out of space, or a webhook on Leases that does not answer, reads go on. All fields are required.
type Heartbeat struct {
	// Client reads from and writes to the API server, whether this replica leads or not. No rate limit may delay it.
	Client client.Client
	// Lease is the Lease that it writes.
	Lease types.NamespacedName
	// Clock is the clock of the ages.
	Clock clock.WithTicker
	// Sight records the looks.
	Sight *lease.Sight

	// version is that of the Lease at the last look that succeeded.
	version string
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*Heartbeat) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable: it looks until ctx ends.
func (h *Heartbeat) Start(ctx context.Context) error {
	ticker := h.Clock.NewTicker(beat)
	defer ticker.Stop()

	failing := false

	for last := (time.Time{}); ; {
		if now := h.Clock.Now(); last.IsZero() || now.Sub(last) >= h.Sight.Pause(now) {
			gap, err := h.look(ctx)
			if gap && !last.IsZero() {
				ctrllog.FromContext(ctx).Info("Leases could not be written for a while: the ages of Leases restart at zero")
			}

			if err != nil && !failing && ctx.Err() == nil {
				ctrllog.FromContext(ctx).Error(err, "Cannot write a Lease: no Lease is taken over while that is so")
			}

			last, failing = now, err != nil
		}

		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// look looks once, and reports whether that ended a gap. After an error that goes on there is a gap.
func (h *Heartbeat) look(ctx context.Context) (gap bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()

	began := h.Clock.Now()

	if err := h.write(ctx); err != nil {
		return false, err
	}

	return h.Sight.Saw(began, h.Clock.Now()), nil
}

// write returns nil if the Lease was written since the last look, by this replica or another one.
func (h *Heartbeat) write(ctx context.Context) error {
	l := &coordinationv1.Lease{}

	err := h.Client.Get(ctx, h.Lease, l)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read Lease %s: %w", h.Lease, err)
	}

	if h.version != "" && l.ResourceVersion != "" && l.ResourceVersion != h.version {
		h.version = l.ResourceVersion
		return nil
	}

	l.Spec.RenewTime = new(metav1.NewMicroTime(h.Clock.Now()))

	if err == nil {
		err = h.Client.Update(ctx, l)
	} else {
		l.Namespace, l.Name = h.Lease.Namespace, h.Lease.Name
		err = h.Client.Create(ctx, l)
	}

	switch {
	case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
		// Another replica was faster. That write counts for this look alone, so the next one writes.
		h.version = ""
		return nil
	case err != nil:
		return fmt.Errorf("write Lease %s: %w", h.Lease, err)
	}

	h.version = l.ResourceVersion

	return nil
}
