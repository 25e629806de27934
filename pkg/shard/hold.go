package shard

import (
	"cmp"
	"context"
	"fmt"

	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"

	"github.com/clusterring/clusterring/pkg/shard/internal/elect"
)

// tenure is the time in which this process holds the shard's Lease, from its acquisition until it is lost or released.
type tenure struct {
	lost <-chan struct{} // closed when the Lease is not renewed any more
	end  func()          // releases the Lease if that may be, and waits for it
}

// connect lets the shard read what it must not take from a cache.
func (s *Shard) connect(config *rest.Config) error {
	// Drains must not queue behind the writes of the controllers.
	config = rest.CopyConfig(config)
	config.QPS, config.RateLimiter = -1, nil

	live, err := metadata.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create the client of a shard of ring %s for live reads: %w", s.options.Ring, err)
	}

	s.readLive(live)

	return nil
}

// hold takes the shard's Lease and returns when this process holds it; it is renewed from the first write on. With slots, the shard has a name then. The Lease
// outlives ctx: it is renewed until the tenure is ended, or lost. Without a tenure, the error is that of ctx, or of a slot.
func (s *Shard) hold(ctx context.Context, config *rest.Config) (*tenure, error) {
	if s.options.Slots.any() && s.Name() == "" {
		if err := s.claim(ctx, config); err != nil {
			return nil, err
		}
	}

	if err := s.poison.open(notesOf(config.Host, s.Namespace(), s.Ring(), cmp.Or(s.options.Pod, s.Name()))); err != nil {
		klog.FromContext(ctx).Info("Objects whose reconcile ends the process are not held back", "error", err.Error())
	}

	leases, err := s.options.leases(config, s.options.RenewDeadline)
	if err != nil {
		return nil, err
	}

	lock := s.lockFor(leases, s.Name())

	election, err := elect.New(leaderelection.LeaderElectionConfig{
		Lock: lock, ReleaseOnCancel: true,
		LeaseDuration: s.options.LeaseDuration, RenewDeadline: s.options.RenewDeadline, RetryPeriod: s.options.RetryPeriod,
	})
	if err != nil {
		return nil, err
	}

	s.lock.Store(lock)

	electing, stop := context.WithCancel(context.WithoutCancel(ctx))

	go election.Run(electing)

	t := &tenure{lost: election.Lost, end: func() {
		stop()
		<-election.Lost
		s.poison.close()
	}}

	select {
	case <-ctx.Done():
		t.end()

		return nil, context.Cause(ctx)
	case <-election.Lost:
		return nil, s.lostError()
	case <-election.Held:
		return t, nil
	}
}

// lostError returns why the Lease was lost: an [ErrLost].
func (s *Shard) lostError() error {
	return fmt.Errorf("shard %s: %w", s.Name(), cmp.Or(s.term.lost(), ErrLost))
}
