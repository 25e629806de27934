package former

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

// shared is the Lease of an election whose holders have one identity. Each of them renews it, so the writes of one are conflicts for the others,
// the more often the more they are. A renewal by another holder is as good as one of this process: the Lease is held for all.
//
// Leader election calls the methods from one goroutine.
type shared struct {
	*resourcelock.LeaseLock

	clock clock.PassiveClock
	// margin is by how much others respect a renewal for longer than leader election counts on it.
	margin time.Duration
	// looked is when the Lease was last read or written, and renewed its renewTime then.
	looked  time.Time
	renewed metav1.Time
}

// Get reads the Lease.
func (l *shared) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	at := l.clock.Now()

	record, raw, err := l.LeaseLock.Get(ctx)
	if err == nil {
		l.looked, l.renewed = at, record.RenewTime
	}

	return record, raw, err //nolint:wrapcheck // leader election looks for NotFound
}

// Update writes the Lease. It succeeds without that if another holder has renewed the Lease since this process last looked at it. That may have been
// right after the look. Leader election counts from now on, so the look must not be older than the difference between the time for which it counts on a
// renewal, and the time for which others respect it.
func (l *shared) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	at := l.clock.Now()

	err := l.LeaseLock.Update(ctx, record)
	if err == nil {
		l.looked, l.renewed = at, metav1.NewTime(record.RenewTime.Truncate(time.Microsecond)) // as it is stored
	}

	if !apierrors.IsConflict(err) {
		return err //nolint:wrapcheck // leader election logs the Lease's name
	}

	looked, renewed := l.looked, l.renewed

	now, _, gone := l.Get(ctx)
	if gone == nil && now.HolderIdentity == l.Identity() && !now.RenewTime.Equal(&renewed) && l.clock.Since(looked) < l.margin {
		return nil
	}

	return err //nolint:wrapcheck // leader election looks for Conflict
}
