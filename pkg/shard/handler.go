package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Resource describes a sharded resource to a controller that does not use controller-runtime. Every field is required except
// Namespaced, whose zero value stands for a cluster-scoped resource, Namespace, Main, and Release.
type Resource struct {
	// Kind is the kind of the resource's objects.
	Kind schema.GroupVersionKind
	// Resource is the resource, in any served version.
	Resource schema.GroupVersionResource
	// Namespaced is true if the objects are namespaced.
	Namespaced bool
	// Namespace is the namespace of the controller's informer; empty if the informer watches all namespaces. A controller with an
	// informer for each of several namespaces has a handler for each.
	Namespace string
	// Main is true for main resources whose objects can be controlled by objects of another one, such as Jobs, if the ring lists both CronJobs and
	// Jobs as main resources. Such an object does not follow its controller.
	Main bool
	// Store is the store of the controller's informer: informer.GetStore(), with keys that consist of namespace and name.
	Store cache.Store
	// Client removes the labels of released objects, reads owners that are not in the store, and lists this shard's objects once
	// after the Lease was taken.
	Client metadata.Interface
	// Release is [Releaser].Release of the controller, or nil if it holds nothing for an object beside its queue.
	Release func(ctx context.Context, name types.NamespacedName) error
}

// Handler is [Shard.Reconciler] for controllers that do not use controller-runtime. It wraps the function that a controller
// calls for a key from its queue: the function runs only for objects that belong to this shard and are not draining, and drains
// are acknowledged. The same rules apply: wrap every such function of the process, including those of controlled kinds. For a
// controlled resource of the ring without such a function, call Handler with nil, which declares it: an object with a hand-over
// that names a resource which is not declared is an error. Add to the queue on every event, or at least on those that change labels.
//
// Call the returned function with the key. It returns the error of sync or its own; retry in both cases. If it returns a
// positive duration, add the key again after that time.
func (s *Shard) Handler(r Resource, sync SyncFunc) func(context.Context, types.NamespacedName) (time.Duration, error) {
	k := r.kind()
	if k.err == nil {
		k.inventory, k.stores = newInventory(s, k), s.stores
		s.stores.add(&store{Store: r.Store, form: form{gvk: r.Kind}, endpoint: k.endpoint, namespace: r.Namespace}, r.Resource.GroupResource())
		s.declare(declared{r.Kind.GroupKind(): {main: r.Main}})
		s.register(k)
	}

	w := s.wrap(k)
	w.ends = r.Release

	return func(ctx context.Context, name types.NamespacedName) (time.Duration, error) {
		ctx = logr.NewContext(ctx, klog.FromContext(ctx))
		result, err := w.work(ctx, name, func(ctx context.Context) (reconcile.Result, error) {
			return reconcile.Result{}, sync(ctx, name)
		})

		return result.RequeueAfter, err
	}
}

// SyncFunc is what a controller does for one object. The context ends when the Lease is lost.
type SyncFunc func(ctx context.Context, name types.NamespacedName) error

func (r Resource) validate() error {
	var errs []error
	if r.Kind.Kind == "" || r.Kind.Version == "" {
		errs = append(errs, errors.New("kind: set group, version and kind"))
	}

	if r.Resource.Resource == "" || r.Resource.Version == "" {
		errs = append(errs, errors.New("resource: set group, version and resource"))
	}

	if r.Store == nil {
		errs = append(errs, errors.New("store: set the informer's store"))
	}

	if r.Client == nil {
		errs = append(errs, errors.New("client: set a metadata client"))
	}

	if len(errs) > 0 {
		return fmt.Errorf("sharded resource %s: %w", r.Resource.GroupResource(), errors.Join(errs...))
	}

	return nil
}

func (r Resource) kind() *kind {
	if err := r.validate(); err != nil {
		return &kind{err: err}
	}

	return &kind{
		gvk: r.Kind, namespace: r.Namespace,
		endpoint:   func() (metadata.Getter, error) { return r.Client.Resource(r.Resource), nil },
		namespaced: func() (bool, error) { return r.Namespaced, nil },
	}
}
