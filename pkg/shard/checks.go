package shard

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"

	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller"
)

var (
	// ErrNotSharded is the error of a request for a sharded kind by a reconcile whose controller was not added to the manager.
	ErrNotSharded = errors.New("its controller was not added to the manager of shard.NewManager, so it would work on objects while another shard does: " +
		"call SetupWithManager, or controller.New, with that manager")
	// ErrPartialCache is the error of a read of a sharded kind from the cache by what runs in one replica.
	ErrPartialCache = errors.New("it runs in one replica, whose cache contains only the objects of its own shard: read with GetAPIReader of the manager, or " +
		"declare the controller as sharded")
)

// checks find reconciles that bypass the shard. The context of a reconcile that was adopted has a mark. One that has none, but the identifier
// that controller-runtime gives to every reconcile, belongs to a controller that nobody has adopted. What is not called by a reconcile, such as a webhook,
// is not checked.
type checks struct {
	scheme *kruntime.Scheme
	kinds  map[schema.GroupKind]bool
	live   map[schema.GroupKind]bool // not read from the cache
	// unstructured is true if unstructured objects are read from the cache.
	unstructured bool
}

// mark identifies a controller that was adopted.
type mark struct {
	where      where
	controller string
}

type markKey struct{}

func newChecks(scheme *kruntime.Scheme, o *client.CacheOptions, kinds map[schema.GroupKind]Kind) (*checks, error) {
	c := &checks{scheme: scheme, kinds: map[schema.GroupKind]bool{}}
	for gk := range kinds {
		c.kinds[gk] = true
	}

	if o == nil {
		return c, nil
	}

	var err error

	c.unstructured = o.Unstructured
	c.live, err = kindsOf(scheme, o.DisableFor)

	return c, err
}

func kindsOf(scheme *kruntime.Scheme, objects []client.Object) (map[schema.GroupKind]bool, error) {
	kinds := map[schema.GroupKind]bool{}

	for _, obj := range objects {
		gvk, err := apiutil.GVKForObject(obj, scheme)
		if err != nil {
			return nil, fmt.Errorf("determine the kind of %T: %w", obj, err)
		}

		kinds[gvk.GroupKind()] = true
	}

	return kinds, nil
}

// marked returns a context whose reconciles are those of an adopted controller. All reconciles of a controller inherit the context of its Start.
func marked(ctx context.Context, m mark) context.Context { return context.WithValue(ctx, markKey{}, m) }

// then calls the function, unless the request for the object is refused.
func (c *checks) then(ctx context.Context, obj any, cached bool, call func() error) error {
	if err := c.request(ctx, obj, cached); err != nil {
		return err
	}

	return call()
}

// request returns the error of a request for an object, a list, or an apply configuration.
func (c *checks) request(ctx context.Context, obj any, cached bool) error {
	if controller.ReconcileIDFromContext(ctx) == "" {
		return nil
	}

	kind, ok := c.sharded(obj)
	if !ok {
		return nil
	}

	m, ok := ctx.Value(markKey{}).(mark)
	if !ok {
		return fmt.Errorf("%s works on %s: %w", caller(), kind.Kind, ErrNotSharded)
	}

	_, loose := obj.(kruntime.Unstructured)
	if m.where == oneReplica && cached && !c.live[kind] && (!loose || c.unstructured) {
		return fmt.Errorf("controller %q reads %s: %w", m.controller, kind.Kind, ErrPartialCache)
	}

	return nil
}

// sharded returns the kind of an object or a list, and reports whether its objects are sharded.
func (c *checks) sharded(obj any) (schema.GroupKind, bool) {
	var gvk schema.GroupVersionKind

	switch obj := obj.(type) {
	case kruntime.Object:
		var err error
		if gvk, err = apiutil.GVKForObject(obj, c.scheme); err != nil {
			return schema.GroupKind{}, false // the request fails
		}
	case interface {
		GetAPIVersion() *string
		GetKind() *string
	}: // an apply configuration
		if obj.GetAPIVersion() == nil || obj.GetKind() == nil {
			return schema.GroupKind{}, false
		}

		gvk = schema.FromAPIVersionAndKind(*obj.GetAPIVersion(), *obj.GetKind())
	}

	kind := gvk.GroupKind()
	kind.Kind = strings.TrimSuffix(kind.Kind, "List")

	return kind, c.kinds[kind] || c.kinds[gvk.GroupKind()]
}

// depth is how many callers are looked at for the reconciler.
const depth = 64

// caller returns the name of the function that reconciles.
func caller() string {
	pcs := make([]uintptr, depth)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	previous := ""

	for {
		frame, more := frames.Next()

		switch name := frame.Function; {
		case strings.HasPrefix(name, "sigs.k8s.io/controller-runtime/pkg/reconcile."): // an adapter of the function that it has called
			return previous
		case strings.HasSuffix(name, ".Reconcile"):
			return name
		default:
			previous = name
		}

		if !more {
			return "a reconciler"
		}
	}
}
