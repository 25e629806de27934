package shard

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

const (
	// drainLook is how often a shard that stops looks whether it still has objects.
	drainLook = 500 * time.Millisecond
	// drainStalled is how long a shard that stops waits for the next drain while none is under way: nobody may drain it, for example because
	// it is the only shard.
	drainStalled = 3 * time.Second
)

// untilDrained returns a context that outlives ctx: when ctx ends, the shard says in its Lease that it stops, and continues to work on its objects, which the
// rebalancer drains one by one. The returned context ends when the shard has no objects any more, when nobody drains them, or when
// [Options].DrainTimeout has passed. If the shard holds a slot and another process waits for one, it ends at once, because that process takes over all
// objects.
func (s *Shard) untilDrained(ctx context.Context) context.Context {
	draining, cancel := context.WithCancelCause(context.WithoutCancel(ctx))

	context.AfterFunc(ctx, func() {
		defer cancel(context.Cause(ctx))

		if s.options.DrainTimeout > 0 && s.term.held() == nil {
			s.drain(draining)
		}
	})

	return draining
}

// drain works until the shard has no objects, or is not drained any more.
func (s *Shard) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.options.DrainTimeout)
	defer cancel()

	log := klog.FromContext(ctx).WithValues("shard", s.Name())

	l := s.lock.Load()
	if l == nil || l.slot && l.awaited(ctx, log) {
		return
	}

	if err := l.announceStop(ctx); err != nil {
		log.Error(err, "Could not say in the Lease that this shard stops; it stops now")
		return
	}

	log.Info("Stopping: waiting until the objects of this shard are drained", "timeout", s.options.DrainTimeout)

	released, since := s.released.Load(), s.term.clock.Now()

	err := wait.PollUntilContextCancel(ctx, drainLook, true, func(ctx context.Context) (bool, error) {
		if err := s.term.lost(); err != nil {
			return false, err
		}

		if l.slot && l.awaited(ctx, log) {
			return true, nil
		}

		now := s.term.clock.Now()
		if n := s.released.Load(); n != released || s.guard.draining() {
			released, since = n, now
			return false, nil // the API server is asked when there is a pause
		}

		has, err := s.hasObjects(ctx)
		if err == nil && has && now.Sub(since) >= drainStalled {
			err = errNoDrain
		}

		return err == nil && !has, err
	})
	if err != nil {
		log.Info("Stopping, perhaps with objects that were not drained", "reason", err.Error())
	}
}

// hasObjects reports whether an object carries the shard's label, as the API server has it.
func (s *Shard) hasObjects(ctx context.Context) (bool, error) {
	for _, k := range s.allKinds() {
		if k.err != nil {
			return false, k.err
		}

		namespaces, err := k.namespaces()
		if err != nil {
			return false, err
		}

		for _, namespace := range namespaces {
			page, err := k.page(ctx, namespace, metav1.ListOptions{LabelSelector: s.Selector().String(), Limit: 1})
			if err != nil || len(page.Items) > 0 {
				return err == nil, err
			}
		}
	}

	return false, nil
}

// allKinds returns all kinds whose objects are sharded.
func (s *Shard) allKinds() []*kind {
	s.mu.RLock()
	defer s.mu.RUnlock()

	return slices.Concat(slices.Collect(maps.Values(s.kinds))...)
}

var (
	errNoDrain = errors.New("nobody drains the objects")
	errNotOurs = errors.New("this process does not hold the Lease")
)

// announceStop says in the Lease that the shard stops. Each later renewal says it again. It may be called while leader election renews the Lease,
// which then reads the Lease again.
func (l *lock) announceStop(ctx context.Context) error {
	l.stopping.Store(true)

	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		lease, err := l.leases.Get(ctx, l.name, metav1.GetOptions{})
		if err != nil {
			return err //nolint:wrapcheck // retry looks for Conflict
		}

		if !isHeld(lease) || lease.Spec.RenewTime == nil || l.slot && !l.pod.wrote(lease) {
			return errNotOurs
		}

		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, contract.AnnotationStopping, contract.OfferValue(lease.Spec.RenewTime.Time))
		_, err = l.leases.Update(ctx, lease, metav1.UpdateOptions{})

		return err //nolint:wrapcheck // retry looks for Conflict
	})
	if err != nil {
		l.stopping.Store(false)
	}

	return err //nolint:wrapcheck // the caller says what for
}
