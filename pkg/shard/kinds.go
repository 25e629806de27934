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

// Main declares main resources of the ring whose objects can be controlled by objects of another wrapped kind. An example is Jobs, if the
// ring lists both CronJobs and Jobs as main resources. The ring assigns such an object by its own name. Therefore it does not follow its
// controller, which can belong to another shard. Call Main before the reconcilers run. Other main resources need no declaration.
func (s *Shard) Main(kinds ...schema.GroupKind) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, gk := range kinds {
		s.mains[gk] = true
	}
}

// isMain reports whether objects of the kind follow no controller.
func (s *Shard) isMain(gk schema.GroupKind) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()

	return s.mains[gk]
}

// kindOf returns and registers the kind of an object, which is read with the client.
func (s *Shard) kindOf(c client.Client, obj client.Object) *kind {
	empty, _ := obj.DeepCopyObject().(client.Object)

	gvk, err := c.GroupVersionKindFor(obj)
	if err != nil {
		return &kind{err: fmt.Errorf("determine the kind of %T: %w", obj, err)}
	}

	form := form{gvk: gvk, goType: reflect.TypeOf(empty)}
	live := func() (metadata.Getter, error) {
		mapping, err := c.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
		if err != nil {
			return nil, fmt.Errorf("determine the resource of %s: %w", gvk.Kind, err)
		}

		return s.liveReader().Resource(mapping.Resource), nil
	}
	k := &kind{
		gvk: gvk,
		get: func(ctx context.Context, name types.NamespacedName) (metav1.Object, error) {
			obj, _ := empty.DeepCopyObject().(client.Object)

			return obj, c.Get(ctx, name, obj)
		},
		patch: func(ctx context.Context, name types.NamespacedName, patch []byte) (string, error) {
			if s.liveReader() != nil {
				r, err := live()
				if err != nil {
					return "", err
				}

				return versionOf(r.Namespace(name.Namespace).Patch(ctx, name.Name, types.MergePatchType, patch, metav1.PatchOptions{}))
			}

			obj := &metav1.PartialObjectMetadata{}
			obj.SetGroupVersionKind(gvk)
			obj.SetNamespace(name.Namespace)
			obj.SetName(name.Name)
			err := c.Patch(ctx, obj, client.RawPatch(types.MergePatchType, patch))

			return obj.GetResourceVersion(), err
		},
		namespaced: func() (bool, error) { return c.IsObjectNamespaced(empty) },
	}
	k.live = func(ctx context.Context, name types.NamespacedName) (metav1.Object, error) {
		if s.liveReader() == nil {
			// The shard has no manager, as in a test: only the client is available.
			return k.get(ctx, name)
		}

		r, err := live()
		if err != nil {
			return nil, err
		}

		return r.Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	}
	k.list = func(ctx context.Context, namespace string, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
		r, err := live()
		if err != nil {
			return nil, err
		}

		return r.Namespace(namespace).List(ctx, o)
	}
	k.namespaces = func() ([]string, error) {
		if namespaced, err := k.namespaced(); err != nil || !namespaced {
			return allNamespaces, err
		}

		return s.cachedNamespaces(gvk), nil
	}
	k.inventory = s.inventoryOf(form, k)
	s.handover.mapped(c.RESTMapper())
	s.register(k)

	return k
}

// form identifies how a kind is cached: each form has its own cache.
type form struct {
	gvk    schema.GroupVersionKind
	goType reflect.Type
}

var allNamespaces = []string{metav1.NamespaceAll}

// kind is one kind of sharded objects, and how to access them.
type kind struct {
	gvk schema.GroupVersionKind
	err error // why the kind cannot be used; then nothing else is set
	// namespace is the only one that get reads, or empty.
	namespace string

	// get reads an object from the cache. The error is NotFound if the cache does not contain it.
	get func(context.Context, types.NamespacedName) (metav1.Object, error)
	// live reads an object's metadata from the API server, even if it belongs to another shard. The error is NotFound if it does
	// not exist.
	live func(context.Context, types.NamespacedName) (metav1.Object, error)
	// list lists the metadata of objects from the API server, in one namespace or all.
	list func(context.Context, string, metav1.ListOptions) (*metav1.PartialObjectMetadataList, error)
	// namespaces returns the cached namespaces.
	namespaces func() ([]string, error)
	// patch sends a merge patch and returns the new resourceVersion.
	patch      func(context.Context, types.NamespacedName, []byte) (string, error)
	namespaced func() (bool, error)
	// inventory tracks whether the cache is up to date.
	inventory *inventory
}

func (s *Shard) register(k *kind) {
	s.mu.Lock()
	defer s.mu.Unlock()

	gk := k.gvk.GroupKind()
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
		s.inventories[f] = &inventory{shard: s, kind: k}
	}

	return s.inventories[f]
}

// cachedNamespaces returns the namespaces in which the manager caches a kind, as far as they are known.
func (s *Shard) cachedNamespaces(gvk schema.GroupVersionKind) []string {
	s.mu.RLock()
	defer s.mu.RUnlock()

	if namespaces := s.namespaces[gvk]; namespaces != nil {
		return namespaces
	}

	return allNamespaces
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

// versionOf returns the version of the object that a request has returned.
func versionOf(obj *metav1.PartialObjectMetadata, err error) (string, error) {
	if err != nil {
		return "", err
	}

	return obj.GetResourceVersion(), nil
}

func (k *kind) key(name types.NamespacedName) objectKey {
	return objectKey{GroupKind: k.gvk.GroupKind(), NamespacedName: name}
}

// read returns the object from the cache, or nil if the cache does not contain it.
func (k *kind) read(ctx context.Context, name types.NamespacedName) (metav1.Object, error) {
	obj, err := k.get(ctx, name)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // absence is a valid answer
	}

	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", k.gvk.Kind, name, err)
	}

	return obj, nil
}
