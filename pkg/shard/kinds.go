package shard

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// declare records the kinds that the program has declared.
func (s *Shard) declare(kinds declared) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.stores.declared.Store(true)

	for gk, kind := range kinds {
		s.mains[gk] = kind.main
	}
}

// kindOf returns and registers the kind of an object. The client is read only while no informer of the kind is known.
func (s *Shard) kindOf(c client.Client, obj client.Object) *kind {
	empty, _ := obj.DeepCopyObject().(client.Object)

	gvk, err := c.GroupVersionKindFor(obj)
	if err != nil {
		return &kind{err: fmt.Errorf("determine the kind of %T: %w", obj, err)}
	}

	if k := s.kind(gvk.GroupKind(), metav1.NamespaceAll); k != nil && k.declared {
		return k
	}

	k := &kind{
		gvk: gvk, stores: s.stores, client: c, empty: empty, endpoint: s.stores.endpoint(gvk),
		namespaced: func() (bool, error) { return c.IsObjectNamespaced(empty) },
	}
	k.inventory = s.inventoryOf(form{gvk, reflect.TypeOf(empty)}, k)
	s.stores.mapped(c.RESTMapper(), gvk)
	s.register(k)

	return k
}

var allNamespaces = []string{metav1.NamespaceAll}

// kind is one kind of sharded objects, and how to access them.
type kind struct {
	gvk schema.GroupVersionKind
	err error // why the kind cannot be used; then nothing else is set
	// namespace is the only one of the reconciler, or empty.
	namespace string

	stores *stores
	endpoint
	// client reads objects like the empty one; nil if the kind has a store.
	client     client.Client
	empty      client.Object
	namespaced func() (bool, error)
	// declared is true if the kind was declared to the manager of the shard, and main if the objects follow no controller.
	main, declared bool
	// inventory tracks whether the cache is up to date.
	inventory *inventory
}

func (s *Shard) register(k *kind) {
	s.mu.Lock()
	defer s.mu.Unlock()

	gk := k.gvk.GroupKind()
	k.main, k.declared = s.mains[gk]

	if !slices.ContainsFunc(s.kinds[gk], func(other *kind) bool { return other.namespace == k.namespace }) {
		s.kinds[gk] = append(s.kinds[gk], k)
	}
}

// readLive sets how to read metadata from the API server.
func (s *Shard) readLive(live metadata.Interface) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.live = live
}

func (s *Shard) liveReader() metadata.Interface {
	s.mu.RLock()
	defer s.mu.RUnlock()

	return s.live
}

// inventoryOf returns the inventory of a cache, which all readers of that cache share.
func (s *Shard) inventoryOf(f form, k *kind) *inventory {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.inventories[f] == nil {
		s.inventories[f] = newInventory(s, k)
	}

	return s.inventories[f]
}

// kind returns a kind that a reconciler was wrapped for, as the one for this namespace reads it, or nil for other kinds. If none reads
// the namespace, it returns another one, whose cache contains no such object.
func (s *Shard) kind(gk schema.GroupKind, namespace string) *kind {
	s.mu.RLock()
	defer s.mu.RUnlock()

	kinds := s.kinds[gk]
	if len(kinds) == 0 {
		return nil
	}

	for _, only := range []string{namespace, metav1.NamespaceAll} {
		if i := slices.IndexFunc(kinds, func(k *kind) bool { return k.namespace == only }); i >= 0 {
			return kinds[i]
		}
	}

	return kinds[0]
}

// cachedAnew is called when there is another informer of a kind. It may be further behind than those that have been looked at.
func (s *Shard) cachedAnew(gk schema.GroupKind) {
	s.handover.doubt()

	s.mu.RLock()
	defer s.mu.RUnlock()

	for form, i := range s.inventories {
		if form.gvk.GroupKind() == gk {
			i.doubt()
		}
	}
}

func (k *kind) key(name types.NamespacedName) objectKey {
	return objectKey{GroupKind: k.gvk.GroupKind(), NamespacedName: name}
}

// named returns the name of an object of the kind that controls one in the namespace.
func (k *kind) named(namespace, name string) (types.NamespacedName, error) {
	namespaced, err := k.namespaced()
	if err != nil {
		return types.NamespacedName{}, fmt.Errorf("determine whether %s is namespaced: %w", k.gvk.Kind, err)
	}

	if !namespaced {
		namespace = ""
	}

	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

// namespaces returns the cached namespaces.
func (k *kind) namespaces() ([]string, error) {
	namespaced, err := k.namespaced()

	switch {
	case err != nil || !namespaced:
		return allNamespaces, err
	case k.namespace != "":
		return []string{k.namespace}, nil
	default:
		return k.stores.namespaces(k.gvk), nil
	}
}

// read returns the object as the process has cached it, or nil. It must not be changed.
func (k *kind) read(ctx context.Context, name types.NamespacedName) (metav1.Object, error) {
	obj, cached, err := k.stores.read(ctx, k.gvk, name)
	if err == nil && !cached {
		obj, err = k.get(ctx, name)
	}

	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("read %s %s: %w", k.gvk.Kind, name, err)
	}

	return obj, nil
}

// shown returns the object if the process has cached it, or nil. Other than read, it neither waits for a cache nor makes one.
func (k *kind) shown(ctx context.Context, name types.NamespacedName) metav1.Object {
	stores := k.stores.showing(k.gvk.GroupKind(), name.Namespace)
	if len(stores) == 0 && k.stores.obtain != nil || slices.ContainsFunc(stores, func(c *store) bool { return !c.synced() }) {
		return nil
	}

	obj, _ := k.read(ctx, name) // an error of the cache is none of the caller's

	return obj
}

// get reads an object with the client. The object is nil if the error is NotFound.
func (k *kind) get(ctx context.Context, name types.NamespacedName) (metav1.Object, error) {
	obj, _ := k.empty.DeepCopyObject().(client.Object)
	if err := k.client.Get(ctx, name, obj); err != nil {
		return nil, err //nolint:wrapcheck // the caller adds the object
	}

	return obj, nil
}

// live reads an object's metadata from the API server, even if it belongs to another shard. It returns nil if the object does not exist.
func (k *kind) live(ctx context.Context, name types.NamespacedName) (obj metav1.Object, err error) {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()

	r, err := k.endpoint()

	switch {
	case err != nil:
	case r != nil:
		obj, err = r.Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	default: // the shard has no manager, as in a test: only the client is available
		obj, err = k.get(ctx, name)
	}

	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // absence is a valid answer
	}

	if err != nil {
		return nil, fmt.Errorf("read %s %s from the API server: %w", k.gvk.Kind, name, err)
	}

	return obj, nil
}

// patch sends a merge patch and returns the new resourceVersion. It does not use the program's client, which may hide what the patch changes, or start an
// informer to wait for it.
func (k *kind) patch(ctx context.Context, name types.NamespacedName, patch []byte) (string, error) {
	r, err := k.endpoint()
	if err != nil {
		return "", err
	}

	obj := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	if r != nil {
		obj, err = r.Namespace(name.Namespace).Patch(ctx, name.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	} else {
		obj.SetGroupVersionKind(k.gvk)
		err = k.client.Patch(ctx, obj, client.RawPatch(types.MergePatchType, patch))
	}

	if err != nil {
		return "", err //nolint:wrapcheck // the caller adds the object
	}

	return obj.GetResourceVersion(), nil
}
