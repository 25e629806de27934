package shards

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
)

// Drains acknowledges the drains of all shards of a ring. Create it with [Fleet.Acknowledge]; it is safe for concurrent use.
type Drains struct {
	acknowledged, conflicts atomic.Int64

	cancel context.CancelFunc
	group  sync.WaitGroup
	err    atomic.Pointer[error]
}

// drained is an object with a drain label.
type drained struct {
	kind                     objects.Kind
	namespace, name, version string
	// next is the shard that the label names; empty if it names none.
	next string
}

// Acknowledge acknowledges all drains of objects of the given kinds, which must be kinds of the ring, until [Drains.Stop]. It uses one
// metadata watch per kind, and one patch per object, as pkg/shard does: the patch is conditional on the resource version, removes the drain
// label, and sets the shard label to the next shard, or removes it if the drain label names none. At most concurrency patches are sent at
// a time.
func (f *Fleet) Acknowledge(ctx context.Context, concurrency int, kinds ...objects.Kind) *Drains {
	ctx, cancel := context.WithCancel(ctx)
	d := &Drains{cancel: cancel}

	const waiting = 1024

	queue := make(chan drained, waiting)

	for _, kind := range kinds {
		d.group.Go(func() { d.end(ctx, f.follow(ctx, kind, queue)) })
	}

	for range max(1, concurrency) {
		d.group.Go(func() { d.work(ctx, f, queue) })
	}

	return d
}

// Acknowledged returns the number of acknowledged drains.
func (d *Drains) Acknowledged() int { return int(d.acknowledged.Load()) }

// Conflicts returns the number of patches that failed because the object had changed.
func (d *Drains) Conflicts() int { return int(d.conflicts.Load()) }

// Stop stops the acknowledgements and returns the first error, if any.
func (d *Drains) Stop() error {
	d.cancel()
	d.group.Wait()

	return d.Err()
}

// Err returns the error that ended the acknowledgements before [Drains.Stop], if any.
func (d *Drains) Err() error {
	if err := d.err.Load(); err != nil {
		return *err
	}

	return nil
}

// end records an error, unless [Drains.Stop] caused it.
func (d *Drains) end(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		d.err.CompareAndSwap(nil, &err)
		d.cancel()
	}
}

func (d *Drains) work(ctx context.Context, f *Fleet, queue <-chan drained) {
	ring := f.Ring.Name

	for {
		select {
		case <-ctx.Done():
			return
		case o := <-queue:
			patch, err := acknowledgement(ring, o.version, o.next)
			if err == nil {
				err = f.options.Objects.MergePatch(ctx, o.kind.Path(o.namespace, o.name), patch)
			}

			switch {
			case err == nil:
				d.acknowledged.Add(1)
			case apierrors.IsConflict(err):
				d.conflicts.Add(1)
			case !apierrors.IsNotFound(err):
				d.end(ctx, fmt.Errorf("acknowledge a drain: %w", err))
			}
		}
	}
}

// acknowledgement returns the patch by which a shard releases an object of the given version, to the next shard if that is known.
func acknowledgement(ring, version, next string) ([]byte, error) {
	var shard any
	if next != "" {
		shard = next
	}

	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": version,
		"labels":          map[string]any{v1alpha1.ShardLabel(ring): shard, v1alpha1.DrainLabel(ring): nil},
	}})
	if err != nil {
		return nil, fmt.Errorf("encode an acknowledgement: %w", err)
	}

	return patch, nil
}

// follow queues every object that has or gets a drain label.
func (f *Fleet) follow(ctx context.Context, kind objects.Kind, queue chan<- drained) error {
	resource := f.options.Objects.Metadata.Resource(kind.GroupVersionResource).Namespace(f.Ring.Namespace)
	selector := v1alpha1.DrainLabel(f.Ring.Name)
	put := func(o *metav1.PartialObjectMetadata) {
		select {
		case queue <- drained{kind, o.Namespace, o.Name, o.ResourceVersion, v1alpha1.NextShard(o.Labels[selector])}:
		case <-ctx.Done():
		}
	}

	for ctx.Err() == nil {
		list, err := resource.List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return fmt.Errorf("list draining %s: %w", kind.Resource, err)
		}

		for i := range list.Items {
			put(&list.Items[i])
		}

		watching, err := resource.Watch(ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: list.ResourceVersion})
		if err != nil {
			return fmt.Errorf("watch draining %s: %w", kind.Resource, err)
		}

		err = drainsOf(watching, put)
		watching.Stop()

		if err != nil {
			return fmt.Errorf("watch draining %s: %w", kind.Resource, err)
		}
	}

	return nil
}

// drainsOf calls put for the objects of a watch until it ends. It returns no error if the resource version has expired.
func drainsOf(watching watch.Interface, put func(*metav1.PartialObjectMetadata)) error {
	for event := range watching.ResultChan() {
		switch event.Type {
		case watch.Added, watch.Modified:
			if o, ok := event.Object.(*metav1.PartialObjectMetadata); ok {
				put(o)
			}
		case watch.Error:
			err := apierrors.FromObject(event.Object)
			if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
				return nil
			}

			return fmt.Errorf("the API server sent an error: %w", err)
		default:
		}
	}

	return nil
}
