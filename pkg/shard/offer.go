package shard

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

const (
	// offerLimit is how long a process waits for another one to take its slot. Meanwhile, nobody works on the objects of the slot.
	offerLimit = 5 * time.Second
	// offerPoll is how often it looks. It looks for processes that wait less often, because all Leases of the namespace are read for that.
	offerPoll, awaitedPoll = 100 * time.Millisecond, 500 * time.Millisecond
)

// offer offers the slot to the processes that wait for one. It reports whether one of them has taken it. Otherwise, the Lease must be released.
// All workers have ended.
func (l *lock) offer(ctx context.Context, record resourcelock.LeaderElectionRecord) (taken bool) {
	log := klog.FromContext(ctx).WithName("slots").WithValues("slot", l.name, "pod", l.pod.name)
	if !l.awaited(ctx, log) {
		return false
	}

	record.HolderIdentity, record.AcquireTime = l.name, metav1.NewTime(l.lease.Spec.AcquireTime.Time)
	record.LeaseDurationSeconds = int(l.term.leaseDuration / time.Second)
	l.offering = true

	err := l.write(ctx, record)
	l.offering = false

	if err != nil {
		log.Error(err, "Could not offer the slot; releasing it instead")
		return false
	}

	log.Info("Offering the slot to the processes that wait for one")

	// Leader election ends the context after the renew deadline: the Lease must be released before that.
	limit := l.term.clock.NewTimer(min(offerLimit, l.term.renewDeadline/2)) //nolint:mnd // half
	defer limit.Stop()

	looked := l.term.clock.Now()

	for {
		poll := l.term.clock.NewTimer(offerPoll)
		select {
		case <-ctx.Done():
			poll.Stop()

			return false
		case <-limit.C():
			poll.Stop()
			log.Info("Nobody has taken the slot; releasing it")

			return false
		case <-poll.C():
		}

		if by, gone := l.takenBy(ctx); gone {
			log.Info("The slot has a new holder", "by", by)
			return true
		}

		if now := l.term.clock.Now(); now.Sub(looked) >= awaitedPoll {
			if looked = now; !l.awaited(ctx, log) {
				return false
			}
		}
	}
}

// awaited reports whether a process waits for this slot.
func (l *lock) awaited(ctx context.Context, log klog.Logger) bool {
	count, err := standbys(ctx, l.leases, slotOf{l.ring, l.name}, l.term.clock.Now())
	if err != nil {
		log.Error(err, "Could not look for processes that wait for a slot; releasing it")
		return false
	}

	return count > 0
}

// takenBy returns the Pod that has taken the slot, and reports whether this process has lost it.
func (l *lock) takenBy(ctx context.Context) (string, bool) {
	if _, err := l.read(ctx); err != nil {
		return "nobody: the Lease was deleted", apierrors.IsNotFound(err)
	}

	return l.other(), l.other() != "" || !isHeld(l.lease)
}
