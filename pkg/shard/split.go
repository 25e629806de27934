package shard

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller"
)

var errStandby = errors.New("this process does not work as a shard yet, so its cache has no objects of sharded kinds: read with GetAPIReader of the manager")

// split is a cache in two parts. That of the sharded kinds, in any version and form, starts when the shard has its name, and contains only objects of this shard. The
// other one starts with the manager, so that webhooks and what runs in every replica also work while the process waits for a slot.
type split struct {
	cache.Cache // of all other kinds

	sharded cache.Cache
	scheme  *runtime.Scheme
	kinds   declared
	// begun is closed when the shard has its name.
	begun <-chan struct{}
}

// of returns the part with the kind, and whether it is that of the sharded kinds.
func (c *split) of(gvk schema.GroupVersionKind) (cache.Cache, bool) {
	if _, _, is := c.kinds.of(gvk.GroupKind()); is {
		return c.sharded, true
	}

	return c.Cache, false
}

func (c *split) with(obj runtime.Object) (cache.Cache, bool, error) {
	gvk, err := apiutil.GVKForObject(obj, c.scheme)
	if err != nil {
		return nil, false, fmt.Errorf("determine the kind of %T: %w", obj, err)
	}

	part, sharded := c.of(gvk)

	return part, sharded, nil
}

// readable returns the part that contains the object, if it can be read. An event handler of a controller waits for that: its watches of other kinds start
// earlier, and it would lose the event.
func (c *split) readable(ctx context.Context, obj runtime.Object) (cache.Cache, error) {
	part, sharded, err := c.with(obj)
	if err != nil || !sharded || closed(c.begun) {
		return part, err
	}

	if _, ok := ctx.Value(markKey{}).(mark); !ok || controller.ReconcileIDFromContext(ctx) != "" {
		return nil, errStandby
	}

	if !waitFor(ctx, c.begun) || !part.WaitForCacheSync(ctx) {
		return nil, context.Cause(ctx)
	}

	return part, nil
}

// Get implements client.Reader.
func (c *split) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	part, err := c.readable(ctx, obj)
	if err != nil {
		return err
	}

	return part.Get(ctx, key, obj, opts...) //nolint:wrapcheck // it is the cache's
}

// List implements client.Reader.
func (c *split) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	part, err := c.readable(ctx, list)
	if err != nil {
		return err
	}

	return part.List(ctx, list, opts...) //nolint:wrapcheck // it is the cache's
}

// GetInformer implements cache.Informers.
func (c *split) GetInformer(ctx context.Context, obj client.Object, opts ...cache.InformerGetOption) (cache.Informer, error) {
	part, sharded, err := c.with(obj)
	if err != nil {
		return nil, err
	}

	if err := c.await(ctx, sharded); err != nil {
		return nil, err
	}

	return part.GetInformer(ctx, obj, opts...) //nolint:wrapcheck // it is the cache's
}

// GetInformerForKind implements cache.Informers.
func (c *split) GetInformerForKind(ctx context.Context, gvk schema.GroupVersionKind, opts ...cache.InformerGetOption) (cache.Informer, error) {
	part, sharded := c.of(gvk)
	if err := c.await(ctx, sharded); err != nil {
		return nil, err
	}

	return part.GetInformerForKind(ctx, gvk, opts...) //nolint:wrapcheck // it is the cache's
}

// await makes a controller that starts wait for the name of the shard before it gets an informer of a sharded kind, which would not be filled before.
func (c *split) await(ctx context.Context, sharded bool) error {
	if _, ok := ctx.Value(markKey{}).(mark); ok && sharded && !waitFor(ctx, c.begun) {
		return context.Cause(ctx)
	}

	return nil
}

// inform makes the informers of those objects that are sharded, or of the others. It does not wait for them.
func (c *split) inform(ctx context.Context, sharded bool, objects []client.Object) error {
	var errs []error

	for _, obj := range objects {
		part, is, err := c.with(obj)
		if err == nil && is == sharded {
			_, err = part.GetInformer(ctx, obj, cache.BlockUntilSynced(false))
		}

		errs = append(errs, err)
	}

	return errors.Join(errs...)
}

// RemoveInformer implements cache.Informers.
func (c *split) RemoveInformer(ctx context.Context, obj client.Object) error {
	part, _, err := c.with(obj)
	if err != nil {
		return err
	}

	return part.RemoveInformer(ctx, obj) //nolint:wrapcheck // it is the cache's
}

// IndexField implements client.FieldIndexer.
func (c *split) IndexField(ctx context.Context, obj client.Object, field string, extract client.IndexerFunc) error {
	part, _, err := c.with(obj)
	if err != nil {
		return err
	}

	return part.IndexField(ctx, obj, field, extract) //nolint:wrapcheck // it is the cache's
}

// Start implements cache.Informers. It starts the part of the sharded kinds when the shard has its name.
func (c *split) Start(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.Cache.Start(ctx) })
	group.Go(func() error {
		if !waitFor(ctx, c.begun) {
			return nil
		}

		return c.sharded.Start(ctx)
	})

	return group.Wait() //nolint:wrapcheck // it is the cache's
}

// WaitForCacheSync implements cache.Informers. While the shard has no name, it waits for other kinds only.
func (c *split) WaitForCacheSync(ctx context.Context) bool {
	return c.Cache.WaitForCacheSync(ctx) && (!closed(c.begun) || c.sharded.WaitForCacheSync(ctx))
}
