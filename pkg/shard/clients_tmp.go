package shard

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// checkedClient is a client that refuses reconciles which bypass the shard.
type checkedClient struct {
	client.Client

	checks *checks
}

// Get implements client.Reader.
func (c *checkedClient) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	return c.checks.then(ctx, obj, true, func() error { return c.Client.Get(ctx, key, obj, opts...) })
}

// List implements client.Reader.
func (c *checkedClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return c.checks.then(ctx, list, true, func() error { return c.Client.List(ctx, list, opts...) })
}

// Apply implements client.Writer.
func (c *checkedClient) Apply(ctx context.Context, config runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	return c.checks.then(ctx, config, false, func() error { return c.Client.Apply(ctx, config, opts...) })
}

// Create implements client.Writer.
func (c *checkedClient) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	return c.checks.then(ctx, obj, false, func() error { return c.Client.Create(ctx, obj, opts...) })
}

// Delete implements client.Writer.
func (c *checkedClient) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	return c.checks.then(ctx, obj, false, func() error { return c.Client.Delete(ctx, obj, opts...) })
}

// DeleteAllOf implements client.Writer.
func (c *checkedClient) DeleteAllOf(ctx context.Context, obj client.Object, opts ...client.DeleteAllOfOption) error {
	return c.checks.then(ctx, obj, false, func() error { return c.Client.DeleteAllOf(ctx, obj, opts...) })
}

// Update implements client.Writer.
func (c *checkedClient) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	return c.checks.then(ctx, obj, false, func() error { return c.Client.Update(ctx, obj, opts...) })
}

// Patch implements client.Writer.
func (c *checkedClient) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	return c.checks.then(ctx, obj, false, func() error { return c.Client.Patch(ctx, obj, patch, opts...) })
}

// checkedReader is checkedClient for a reader without a cache.
type checkedReader struct {
	client.Reader

	checks *checks
}

// Get implements client.Reader.
func (r *checkedReader) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	return r.checks.then(ctx, obj, false, func() error { return r.Reader.Get(ctx, key, obj, opts...) })
}

// List implements client.Reader.
func (r *checkedReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return r.checks.then(ctx, list, false, func() error { return r.Reader.List(ctx, list, opts...) })
}

// checkedCache is checkedClient for a cache.
type checkedCache struct {
	cache.Cache

	checks *checks
}

// Get implements client.Reader.
func (c *checkedCache) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	return c.checks.then(ctx, obj, true, func() error { return c.Cache.Get(ctx, key, obj, opts...) })
}

// List implements client.Reader.
func (c *checkedCache) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return c.checks.then(ctx, list, true, func() error { return c.Cache.List(ctx, list, opts...) })
}
