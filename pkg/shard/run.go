package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
)

// Run runs a controller without a manager as this shard. It takes the shard's Lease with the given config, waits for the end of
// the hold-off, calls work, and releases the Lease after work has returned. Call it once.
//
// The context of work ends when ctx ends, and when the Lease is lost. Work must return only after everything that it has started
// has stopped; if it does not, the process ends as described at [Options].Exit. Caches may be filled earlier, in work or outside
// it: if a cache is older than the term, its objects in a [Shard.Handler] wait until the cache has caught up.
//
// Run returns the error of work. If the Lease was lost, it returns an [ErrLost], and the process must end with a non-zero exit
// code. It returns nil if ctx ended before the Lease was taken.
func (s *Shard) Run(ctx context.Context, config *rest.Config, work func(ctx context.Context) error) error {
	lock, err := s.connect(config)
	if err != nil {
		return err
	}

	held, ended := make(chan struct{}), make(chan struct{})

	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: s.options.Name, ReleaseOnCancel: true,
		LeaseDuration: s.options.LeaseDuration, RenewDeadline: s.options.RenewDeadline, RetryPeriod: s.options.RetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(held) },
			OnStoppedLeading: func() {}, // the term has ended before: the Lease was released or lost, or its deadline has passed
		},
	})
	if err != nil {
		return fmt.Errorf("set up the election of shard %s: %w", s.options.Name, err)
	}

	// The Lease outlives ctx until work has returned.
	electing, stop := context.WithCancel(context.WithoutCancel(ctx))

	go func() {
		defer close(ended)
		elector.Run(electing)
	}()

	defer func() {
		stop()
		<-ended
	}()

	select {
	case <-ctx.Done():
		return nil
	case <-held:
	}

	if err := s.during(ctx, work); err != nil {
		return fmt.Errorf("run shard %s: %w", s.options.Name, err)
	}

	return nil
}

// during calls the function as a worker, after the hold-off. It returns an ErrLost if the term ended before the function
// returned.
func (s *Shard) during(ctx context.Context, work func(ctx context.Context) error) error {
	working, end, err := s.term.begin(ctx)
	for wait := holdOffError(0); errors.As(err, &wait); working, end, err = s.term.begin(ctx) {
		timer := s.term.clock.NewTimer(time.Duration(wait))
		select {
		case <-ctx.Done():
			timer.Stop()

			return nil
		case <-timer.C():
		}
	}

	if err != nil {
		return err
	}

	defer end()

	return errors.Join(work(working), s.term.lost())
}

// TweakListOptions restricts a list or watch to the objects of this shard, in addition to what the options already select. It is
// meant for informer factories: informers.WithTweakListOptions(s.TweakListOptions).
func (s *Shard) TweakListOptions(o *metav1.ListOptions) {
	selector := s.Selector().String()
	if o.LabelSelector != "" {
		selector = o.LabelSelector + "," + selector
	}

	o.LabelSelector = selector
}
