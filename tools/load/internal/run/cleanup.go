package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"

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

// RemoveAll removes all objects of some kinds in a namespace, as [Bench.Remove] does.
func (b *Bench) RemoveAll(namespace string, kinds ...objects.Kind) {
	for _, kind := range kinds {
		b.Remove(func(ctx context.Context) error {
			return b.Objects.DeleteAll(ctx, objects.Selection{Kind: kind, Namespace: namespace})
		})
	}
}

// Make creates an object, and removes it as [Bench.Remove] does.
func (b *Bench) Make(ctx context.Context, o client.Object) error {
	if err := b.System.Client.Create(ctx, o); err != nil {
		return fmt.Errorf("create %T %s: %w", o, o.GetName(), err)
	}
	b.Remove(func(ctx context.Context) error { return client.IgnoreNotFound(b.System.Client.Delete(ctx, o)) })

	return nil
}

// cleanUp cleans up, also if ctx has ended.
func (b *Bench) cleanUp(ctx context.Context) error {
	var errs []error
	for _, clean := range slices.Backward(b.cleanups.all) {
		errs = append(errs, clean(context.WithoutCancel(ctx)))
	}

	return errors.Join(errs...)
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
