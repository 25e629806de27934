package shard

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

const (
	// drainLook is how often a shard that stops looks whether it still has objects. awaitedLook is how often it looks whether somebody waits for
	// its slot, because all Leases of the namespace are read for that.
	drainLook, awaitedLook = 200 * time.Millisecond, time.Second
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

	l := s.lease()
	if l == nil || l.slot && l.awaited(ctx, log) {
		return
	}

	if err := l.announceStop(ctx); err != nil {
		log.Error(err, "Could not say in the Lease that this shard stops; it stops now")
		return
	}

	log.Info("Stopping: waiting until the objects of this shard are drained", "timeout", s.options.DrainTimeout)

	look := s.term.clock.NewTimer(0)
	defer look.Stop()

	looked := s.term.clock.Now()

	for released, since := s.released.Load(), looked; ; {
		select {
		case <-ctx.Done():
			log.Info("Stopping with objects that were not drained in time")
			return
		case <-look.C():
		}

		now := s.term.clock.Now()
		if s.term.lost() != nil {
			return
		}

		if l.slot && now.Sub(looked) >= awaitedLook {
			if looked = now; l.awaited(ctx, log) {
				return
			}
		}

		look.Reset(drainLook)

		if n := s.released.Load(); n != released || s.guard.draining() {
			released, since = n, now
			continue // the API server is asked when there is a pause
		}

		switch has, err := s.hasObjects(ctx); {
		case err != nil && ctx.Err() == nil:
			log.Error(err, "Could not look for objects of this shard; it stops now")
			return
		case err == nil && !has:
			return
		case now.Sub(since) >= drainStalled:
			log.Info("Stopping with objects that nobody drains")
			return
		}
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

// lease returns the lock of the shard's Lease; nil before the shard knows how to reach it.
func (s *Shard) lease() *lock {
	s.mu.RLock()
	defer s.mu.RUnlock()

	return s.lock
}

var errNotOurs = errors.New("this process does not hold the Lease")

// announceStop says in the Lease that the shard stops. Each later renewal says it again. It may be called while leader election renews the Lease,
// which then reads the Lease again.
func (l *lock) announceStop(ctx context.Context) error {
	l.stopping.Store(true)

	err := retry.OnError(retry.DefaultBackoff, apierrors.IsConflict, func() error {
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
