package run

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
)

// openers is the number of parts that [Bench.Each] makes or cleans up at a time.
const openers = 8

// cleanups are what a bench has to clean up.
type cleanups struct {
	mu  sync.Mutex
	all []func(context.Context) error
}

// Cleanup has clean called when the part of the measurement that has this bench ends, last registered first.
func (b *Bench) Cleanup(clean func(context.Context) error) {
	b.cleanups.mu.Lock()
	defer b.cleanups.mu.Unlock()

	b.cleanups.all = append(b.cleanups.all, clean)
}

// Remove is Cleanup for what disappears with the control plane, and is not called if that is discarded after this part.
func (b *Bench) Remove(clean func(context.Context) error) {
	if !b.last {
		b.Cleanup(clean)
	}
}

// cleanUp cleans up, also if ctx has ended.
func (b *Bench) cleanUp(ctx context.Context) error {
	var errs []error
	for _, clean := range slices.Backward(b.cleanups.all) {
		errs = append(errs, clean(context.WithoutCancel(ctx)))
	}

	return errors.Join(errs...)
}

// scope calls do with a bench that is cleaned up afterwards.
func (b *Bench) scope(ctx context.Context, do func(b *Bench) error) error {
	part := *b
	part.cleanups = &cleanups{}

	return errors.Join(do(&part), part.cleanUp(ctx))
}

// Part calls do with a bench for one of several parts of a measurement, and cleans up what that has made. The budget of the part is an equal
// share of the remaining time, where remaining is the number of remaining parts, including this one.
func (b *Bench) Part(ctx context.Context, remaining int, do func(b *Bench) error) error {
	part := b.Share(remaining)
	part.last = b.last && remaining == 1

	return part.scope(ctx, do)
}

// Share returns a bench for one of several parts of a measurement that clean up together. Its budget is that of [Bench.Part].
func (b *Bench) Share(remaining int) *Bench {
	part := *b
	if !b.deadline.IsZero() {
		now := b.Clock.Now()
		part.deadline = now.Add(b.deadline.Sub(now) / time.Duration(remaining))
	}

	return &part
}

// Each calls do for each of n parts, several at a time. They are cleaned up with this bench, several at a time.
func (b *Bench) Each(ctx context.Context, n int, do func(b *Bench, i int) error) error {
	parts := make([]*Bench, n)
	for i := range parts {
		part := *b
		part.cleanups = &cleanups{}
		parts[i] = &part
	}
	b.Cleanup(func(ctx context.Context) error {
		errs := make([]error, n)

		return errors.Join(objects.Each(ctx, n, openers, func(ctx context.Context, i int) error {
			errs[i] = parts[i].cleanUp(ctx)
			return nil
		}), errors.Join(errs...))
	})

	return objects.Each(ctx, n, openers, func(_ context.Context, i int) error { return do(parts[i], i) })
}
