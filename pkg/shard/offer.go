package shard

import (
	"context"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

const (
	// offerLimit is how long a process waits for another one to take its slot. Meanwhile, nobody works on the objects of the slot.
	offerLimit = 5 * time.Second
	// offerPoll is how often it looks.
	offerPoll = 250 * time.Millisecond
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
	if l.offering = false; err != nil {
		log.Error(err, "Could not offer the slot; releasing it instead")
		return false
	}

	// Leader election ends the context after the renew deadline: the Lease must be released before that.
	limit := min(offerLimit, l.term.renewDeadline/2) //nolint:mnd // half

	_ = wait.PollUntilContextTimeout(ctx, offerPoll, limit, false, func(ctx context.Context) (bool, error) {
		waits := l.awaited(ctx, log) // a process leaves after it has taken the slot
		_, err := l.read(ctx)
		taken = apierrors.IsNotFound(err) || err == nil && (l.other() != "" || !isHeld(l.lease))

		return taken || !waits, nil
	})
	log.Info("Offered the slot", "taken", taken)

	return taken
}

// awaited reports whether a process waits for this slot.
func (l *lock) awaited(ctx context.Context, log klog.Logger) bool {
	list, err := l.leases.List(ctx, metav1.ListOptions{LabelSelector: contract.LabelStandby + "=" + l.options.Ring})
	if err != nil {
		log.Error(err, "Could not look for processes that wait for a slot; releasing it")
		return false
	}

	now := l.term.clock.Now()

	return slices.ContainsFunc(list.Items, func(s coordinationv1.Lease) bool {
		return contract.IsWaiting(s.Spec.RenewTime, now) && contract.WaitsFor(s.Annotations, l.options.Ring, l.name)
	})
}
