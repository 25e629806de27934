package shard

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// fencedClient implements the client that Shard.Client returns. It returns errors of the inner client unchanged.
type fencedClient struct {
	client.Client
	fence fence
}

var _ client.Client = (*fencedClient)(nil)

// Apply implements client.Writer.
func (c *fencedClient) Apply(ctx context.Context, config runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	return c.fence.apply(ctx, config, func(config runtime.ApplyConfiguration) error {
		return c.Client.Apply(ctx, config, opts...)
	})
}

// Create implements client.Writer.
func (c *fencedClient) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	return c.fence.do("create", func() error { return c.Client.Create(ctx, obj, opts...) })
}

// Delete implements client.Writer.
func (c *fencedClient) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	return c.fence.do("delete", func() error { return c.Client.Delete(ctx, obj, opts...) })
}

// DeleteAllOf implements client.Writer.
func (c *fencedClient) DeleteAllOf(ctx context.Context, obj client.Object, opts ...client.DeleteAllOfOption) error {
	return c.fence.do("delete", func() error { return c.Client.DeleteAllOf(ctx, obj, opts...) })
}

// Update implements client.Writer.
func (c *fencedClient) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	return c.fence.do("update", func() error { return c.Client.Update(ctx, obj, opts...) })
}

// Patch implements client.Writer.
func (c *fencedClient) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	return c.fence.patch(ctx, obj, patch, func(patch client.Patch) error { return c.Client.Patch(ctx, obj, patch, opts...) })
}

// Status implements client.StatusClient.
func (c *fencedClient) Status() client.SubResourceWriter {
	return &fencedWriter{SubResourceWriter: c.Client.Status(), fence: c.fence}
}

// SubResource implements client.SubResourceClientConstructor.
func (c *fencedClient) SubResource(name string) client.SubResourceClient {
	inner := c.Client.SubResource(name)

	return &fencedSubResource{SubResourceReader: inner, SubResourceWriter: &fencedWriter{SubResourceWriter: inner, fence: c.fence}}
}

type fencedSubResource struct {
	client.SubResourceReader
	client.SubResourceWriter
}

type fencedWriter struct {
	client.SubResourceWriter
	fence fence
}

// Apply implements client.SubResourceWriter.
func (w *fencedWriter) Apply(ctx context.Context, config runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
	call := func(config runtime.ApplyConfiguration) error { return w.SubResourceWriter.Apply(ctx, config, opts...) }

	var o client.SubResourceApplyOptions
	if o.ApplyOpts(opts).SubResourceBody == nil {
		return w.fence.apply(ctx, config, call)
	}

	return w.fence.do("apply", func() error { return call(config) })
}

// Create implements client.SubResourceWriter.
func (w *fencedWriter) Create(ctx context.Context, obj, sub client.Object, opts ...client.SubResourceCreateOption) error {
	return w.fence.do("create", func() error { return w.SubResourceWriter.Create(ctx, obj, sub, opts...) })
}

// Update implements client.SubResourceWriter.
func (w *fencedWriter) Update(ctx context.Context, obj client.Object, opts ...client.SubResourceUpdateOption) error {
	return w.fence.do("update", func() error { return w.SubResourceWriter.Update(ctx, obj, opts...) })
}

// Patch implements client.SubResourceWriter.
func (w *fencedWriter) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	call := func(patch client.Patch) error { return w.SubResourceWriter.Patch(ctx, obj, patch, opts...) }

	var o client.SubResourcePatchOptions
	if o.ApplyOptions(opts).SubResourceBody != nil {
		return w.fence.do("patch", func() error { return call(patch) })
	}

	return w.fence.patch(ctx, obj, patch, call)
}
