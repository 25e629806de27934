package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Resource describes a sharded resource to a controller that does not use controller-runtime. Every field is required except
// Namespaced, whose zero value stands for a cluster-scoped resource, Namespace, and Release.
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
// are acknowledged. The same rules apply: wrap every such function of the process, including those of controlled kinds. Add to
// the queue on every event, or at least on those that change labels.
//
// Call the returned function with the key. It returns the error of sync or its own; retry in both cases. If it returns a
// positive duration, add the key again after that time.
func (s *Shard) Handler(r Resource, sync SyncFunc) func(context.Context, types.NamespacedName) (time.Duration, error) {
	k := r.kind()
	if k.err == nil {
		k.inventory = &inventory{shard: s, kind: k}
		s.handover.add(&cached{form: form{gvk: r.Kind}, resource: r.Resource, namespace: r.Namespace, store: r.Store, live: func() metadata.Interface { return r.Client }})
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
		gvk: r.Kind, namespace: r.Namespace, get: r.get, live: r.live, list: r.list, patch: r.patch,
		namespaced: func() (bool, error) { return r.Namespaced, nil },
		namespaces: func() ([]string, error) { return []string{r.Namespace}, nil },
	}
}

func (r Resource) list(ctx context.Context, namespace string, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	return r.Client.Resource(r.Resource).Namespace(namespace).List(ctx, o) //nolint:wrapcheck // the caller adds the kind
}

func (r Resource) live(ctx context.Context, name types.NamespacedName) (metav1.Object, error) {
	return r.Client.Resource(r.Resource).Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{}) //nolint:wrapcheck // the caller adds the object
}

func (r Resource) get(_ context.Context, name types.NamespacedName) (metav1.Object, error) {
	key := cache.NewObjectName(name.Namespace, name.Name).String()

	item, exists, err := r.Store.GetByKey(key)
	if err != nil {
		return nil, fmt.Errorf("read the informer's store: %w", err)
	}

	if !exists {
		return nil, apierrors.NewNotFound(r.Resource.GroupResource(), key) //nolint:wrapcheck // made here
	}

	obj, err := meta.Accessor(item)
	if err != nil {
		return nil, fmt.Errorf("the informer's store has no objects: %w", err)
	}

	return obj, nil
}

func (r Resource) patch(ctx context.Context, name types.NamespacedName, patch []byte) (string, error) {
	return versionOf(r.Client.Resource(r.Resource).Namespace(name.Namespace).Patch(ctx, name.Name, types.MergePatchType, patch, metav1.PatchOptions{}))
}
