package shardlease

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/services/internal/lease"
)

const (
	// beat is the shortest time between two heartbeats.
	beat = time.Second
	// beatTimeout is when a heartbeat that is not answered is given up.
	beatTimeout = 2 * time.Second
)

// Heartbeat looks at the API server every other second, or every second if there are Leases shorter than 10 s. It tells
// [lease.Sight] when renewals of shards could be seen, which a silent watch does not. A look is a read of one object, existing or
// not, which the API server answers from its storage. This is the total cost, per replica, for all rings and shards. All fields
// are required.
type Heartbeat struct {
	// Live reads from the API server. No rate limit may delay it.
	Live client.Reader
	// Lease is the object that it reads.
	Lease types.NamespacedName
	// Clock is the clock of the ages.
	Clock clock.WithTicker
	// Sight records the looks.
	Sight *lease.Sight
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*Heartbeat) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable: it looks until ctx ends.
func (h *Heartbeat) Start(ctx context.Context) error {
	ticker := h.Clock.NewTicker(beat)
	defer ticker.Stop()

	for last := (time.Time{}); ; {
		if now := h.Clock.Now(); last.IsZero() || now.Sub(last) >= h.Sight.Pause(now) {
			if gap := h.look(ctx); gap && !last.IsZero() {
				ctrllog.FromContext(ctx).Info("The API server was not visible for a while: the ages of Leases restart at zero")
			}

			last = now
		}

		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// look looks once, and reports whether that ended a gap.
func (h *Heartbeat) look(ctx context.Context) (gap bool) {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()

	began := h.Clock.Now()

	err := h.Live.Get(ctx, h.Lease, &coordinationv1.Lease{})
	if client.IgnoreNotFound(err) != nil {
		return false // and if that goes on, it becomes a gap
	}

	return h.Sight.Saw(began, h.Clock.Now())
}
