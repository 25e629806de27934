package shard

import (
	"context"
	"errors"
	"fmt"

	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller"
)

var (
	// ErrNotAdded is the error of a request for a sharded kind by a reconcile whose controller was not added to the shard's manager.
	ErrNotAdded = errors.New("its controller was not added to the manager of the shard, so it would work on objects while another shard does: " +
		"call SetupWithManager, or controller.New, with that manager")
	// ErrPartialCache is the error of a read of a sharded kind from the cache by what runs in one replica.
	ErrPartialCache = errors.New("it runs in one replica, whose cache contains only the objects of its own shard: read with GetAPIReader of the manager, or " +
		"declare the controller as sharded")
)

// checks find reconciles that bypass the shard. The context of a reconcile whose controller was added to the shard's manager has a mark. One that has none,
// but the identifier that controller-runtime gives to every reconcile, belongs to a controller that was not. What is not called by a reconcile, such as a
// webhook, is not checked.
type checks struct {
	scheme *kruntime.Scheme
	kinds  declared
	live   map[schema.GroupKind]bool // not read from the cache
	// unstructured is true if unstructured objects are read from the cache.
	unstructured bool
}

// mark identifies a controller that was added to the manager.
type mark struct {
	controller string
	oneReplica bool // it does not run in every replica, so the cache of its process does not contain all that it works on
}

type markKey struct{}

// marked returns a context whose reconciles are those of a controller of the manager. All reconciles of a controller inherit the context of its Start.
func marked(ctx context.Context, m mark) context.Context { return context.WithValue(ctx, markKey{}, m) }

// request returns what is declared of an object, a list, or an apply configuration, or why nobody may ask for it.
func (c *checks) request(ctx context.Context, obj any, cached bool) (sort, error) {
	d := c.sort(obj)
	if !d.is || controller.ReconcileIDFromContext(ctx) == "" {
		return d, nil
	}

	m, ok := ctx.Value(markKey{}).(mark)
	if !ok {
		return d, fmt.Errorf("shard: a reconciler works on %s: %w", d.Kind, ErrNotAdded)
	}

	if m.oneReplica && cached {
		return d, fmt.Errorf("shard: controller %q reads %s: %w", m.controller, d.Kind, ErrPartialCache)
	}

	return d, nil
}

// cached reports whether a client reads the object or list from its cache.
func (c *checks) cached(obj kruntime.Object) bool {
	_, loose := obj.(kruntime.Unstructured)

	return !c.live[c.sort(obj).GroupKind] && (!loose || c.unstructured)
}

// sort is a kind, whether it is declared, and as what.
type sort struct {
	schema.GroupKind

	is, main bool
}

// sort returns that of an object, a list, an apply configuration, or a kind.
func (c *checks) sort(obj any) sort {
	var gvk schema.GroupVersionKind

	switch obj := obj.(type) {
	case schema.GroupVersionKind:
		gvk = obj
	case kruntime.Object:
		var err error
		if gvk, err = apiutil.GVKForObject(obj, c.scheme); err != nil {
			return sort{} // the request fails
		}
	case interface {
		GetAPIVersion() *string
		GetKind() *string
	}: // an apply configuration
		gvk = schema.FromAPIVersionAndKind(ptr.Deref(obj.GetAPIVersion(), ""), ptr.Deref(obj.GetKind(), ""))
	}

	gk, kind, is := c.kinds.of(gvk.GroupKind())

	return sort{gk, is, is && kind.main}
}
