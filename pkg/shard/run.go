package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Run runs a controller without a manager as this shard. It waits for a slot, if the shard has slots, takes the shard's Lease with the given config, waits for
// the end of the hold-off, calls work, and releases the Lease after work has returned. Call it once.
//
// When ctx ends, the shard says in its Lease that it stops, and works until its objects are drained, as [Options].DrainTimeout describes. Then the context of
// work ends. It also ends when the Lease is lost. Work must return only after everything that it has started has stopped; if it does not, the process ends
// as described at [Options].Exit. Informers with [Shard.TweakListOptions] must start in work, where the shard has its name.
//
// Run returns the error of work. If the Lease was lost, it returns an [ErrLost], and the process must end with a non-zero exit
// code. It returns nil if ctx ended before the Lease was taken.
func (s *Shard) Run(ctx context.Context, config *rest.Config, work func(ctx context.Context) error) error {
	if err := s.connect(config); err != nil {
		return err
	}

	defer running.add(s)()

	t, err := s.hold(ctx, config)

	switch {
	case ctx.Err() != nil && t == nil:
		return nil
	case err != nil:
		return fmt.Errorf("run a shard of ring %s: %w", s.options.Ring, err)
	}

	defer t.end()

	if err := s.during(s.untilDrained(ctx), work); err != nil {
		return fmt.Errorf("run shard %s: %w", s.Name(), err)
	}

	return nil
}

// during calls the function as a worker, after the hold-off. It returns an ErrLost if the term ended before the function
// returned.
func (s *Shard) during(ctx context.Context, work func(ctx context.Context) error) error {
	working, end, err := s.term.begin(ctx)
	for wait := holdOffError(0); errors.As(err, &wait); working, end, err = s.term.begin(ctx) {
		select {
		case <-ctx.Done():
			return nil
		case <-s.term.clock.After(time.Duration(wait)):
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
