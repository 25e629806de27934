package shards

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
)

// Acknowledge acknowledges all drains of objects of the ring's main kind, until the returned function is called, which returns the first
// error. It uses one metadata watch, and one patch per object, as pkg/shard does: the patch is conditional on the resource version, removes
// the drain label, and sets the shard label to the next shard, or removes it if the drain label names none.
func (f *Fleet) Acknowledge(ctx context.Context, kind objects.Kind) (stop func() error, err error) {
	const waiting = 1024

	var (
		workers      sync.WaitGroup
		queue        = make(chan *metav1.PartialObjectMetadata, waiting)
		shard, drain = contract.ShardLabel(f.Ring.Name), contract.DrainLabel(f.Ring.Name)
	)

	ctx, cancel := context.WithCancelCause(ctx)

	for range objects.Concurrency {
		workers.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case o := <-queue:
					labels := map[string]any{shard: nil, drain: nil}
					if next := contract.NextShard(o.Labels[drain]); next != "" {
						labels[shard] = next
					}

					err := f.objects.MergePatch(ctx, kind.Path(o.Namespace, o.Name), map[string]any{
						"metadata": map[string]any{"resourceVersion": o.ResourceVersion, "labels": labels},
					})
					if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
						cancel(fmt.Errorf("acknowledge a drain: %w", err))
					}
				}
			}
		})
	}

	draining, err := f.objects.Watch(ctx, func(event watch.EventType, _ objects.Kind, o *metav1.PartialObjectMetadata) {
		if event == watch.Deleted {
			return // its drain label is gone
		}

		select {
		case queue <- o:
		case <-ctx.Done():
		}
	}, objects.Selection{Kind: kind, Namespace: f.Ring.Namespace, Labels: drain})
	if err != nil {
		cancel(nil)
		workers.Wait()

		return nil, fmt.Errorf("follow drains: %w", err)
	}

	return func() error {
		failed := context.Cause(ctx)

		cancel(nil)
		draining.Stop()
		workers.Wait()

		if failed == nil {
			failed = draining.Err()
		}

		return failed
	}, nil
}
