package shard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// stores are the caches of sharded objects in this process. A look at an object reads them, not the program's client:
// that would send requests for some forms, and copy the object.
//
//	S1  The store of every informer is registered before the informer starts, with its kind, form and namespace. It is
//	    found in the same time however many there are.
//	S2  The program may read an object from any store that shows the object. What the shard does depends on the one that
//	    is furthest behind, and on nothing while they disagree about the shard.
//	S3  Whatever the program's transforms do, the stores contain the ring's labels and annotation, and the controller of
//	    each object.
//
// controller-runtime makes an informer for each namespace and does not say which. The transform of an informer is the
// only part of its configuration that belongs to a namespace and is passed before the informer starts. Therefore,
// follow replaces the transforms by functions that name their namespace, and the informers get the program's transforms
// from here. Learning them from requests or objects was refused: both come late, and a namespace may contain no
// objects.
type stores struct {
	keys ringKeys
	// live reads metadata from the API server; nil until the shard knows how to reach it.
	live func() metadata.Interface
	// selector, if set, replaces the label selectors of the cache.
	selector labels.Selector
	// obtain, if set, makes an informer for a declared kind that nobody caches, or errUndeclared for other kinds.
	obtain func(context.Context, *metav1.PartialObjectMetadata) error
	// observe, if set, is called for every informer before it starts.
	observe func(schema.GroupKind, toolscache.SharedIndexInformer)

	scheme   *runtime.Scheme
	defaults cache.Options // of the program
	byObject map[schema.GroupVersionKind]cache.ByObject

	mu     sync.RWMutex
	mapper meta.RESTMapper
	kinds  map[schema.GroupKind]map[string][]*store // by namespace; "" stands for all. A slice never changes.
	named  map[schema.GroupResource]schema.GroupKind
	// nameless are the kinds whose resources are not known yet, with a version.
	nameless map[schema.GroupKind]string
	// declared is true if the program has declared all resources of the ring.
	declared atomic.Bool
}

// form identifies how a kind is cached: each form has its own cache.
type form struct {
	gvk    schema.GroupVersionKind
	goType reflect.Type // nil if the program does not use controller-runtime
}

// store is what one informer has cached.
type store struct {
	toolscache.Store
	form form
	endpoint
	// namespace is the only one of the informer; empty if it has all, or, with rest, those that no other of this form has.
	namespace string
	rest      bool
	// informer is nil if only the store is known.
	informer toolscache.SharedIndexInformer
}

func newStores(keys ringKeys, live func() metadata.Interface) *stores {
	return &stores{
		keys: keys, live: live, kinds: map[schema.GroupKind]map[string][]*store{},
		named:    map[schema.GroupResource]schema.GroupKind{},
		nameless: map[schema.GroupKind]string{},
	}
}

// add registers a store, and the resource of its kind, if that is known.
func (s *stores) add(c *store, resource schema.GroupResource) {
	s.mu.Lock()
	defer s.mu.Unlock()

	gk := c.form.gvk.GroupKind()
	if s.kinds[gk] == nil {
		s.kinds[gk] = map[string][]*store{}
	}

	s.kinds[gk][c.namespace] = append(slices.Clone(working(s.kinds[gk][c.namespace])), c)

	if resource.Resource != "" {
		s.named[resource] = gk
	} else {
		s.nameless[gk] = c.form.gvk.Version
	}
}

// mapped sets how to determine the resources of kinds, also of the given ones.
func (s *stores) mapped(mapper meta.RESTMapper, kinds ...schema.GroupVersionKind) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.mapper = mapper
	for _, gvk := range kinds {
		s.nameless[gvk.GroupKind()] = gvk.Version
	}
}

// of returns the stores that can show objects of a resource in a namespace; an empty one stands for all. The error is
// errUndeclared, or reports that the resource may be that of a kind that cannot be looked up now.
func (s *stores) of(resource schema.GroupResource, namespace string) ([]*store, error) {
	s.mu.Lock()

	for gk, version := range s.nameless {
		if s.mapper == nil {
			break
		}

		mapping, err := s.mapper.RESTMapping(gk, version)
		if err == nil {
			s.named[mapping.Resource.GroupResource()] = gk
			delete(s.nameless, gk)
		} else if !meta.IsNoMatchError(err) { // what is not served is not cached
			s.mu.Unlock()
			return nil, fmt.Errorf("the resource of %s, which is not known: look up the resource: %w", gk.Kind, err)
		}
	}

	gk, known := s.named[resource]
	s.mu.Unlock()

	if !known && s.declared.Load() {
		return nil, errUndeclared
	}

	if namespace == "" {
		return s.everywhere(gk), nil
	}

	return s.showing(gk, namespace), nil
}

// showing returns the stores that show the objects of a kind in one namespace, or without one. Each shows all of them.
func (s *stores) showing(gk schema.GroupKind, namespace string) []*store {
	s.mu.RLock()
	own, all := s.kinds[gk][namespace], s.kinds[gk][metav1.NamespaceAll]
	s.mu.RUnlock()

	switch {
	case namespace == "" || len(own) == 0:
		return working(all)
	case len(all) == 0:
		return working(own)
	}

	return working(slices.Concat(own, slices.DeleteFunc(slices.Clone(all), func(c *store) bool {
		return c.rest && slices.ContainsFunc(own, func(other *store) bool { return other.form == c.form })
	})))
}

func (s *stores) everywhere(gk schema.GroupKind) []*store {
	s.mu.RLock()
	defer s.mu.RUnlock()

	return working(slices.Concat(slices.Collect(maps.Values(s.kinds[gk]))...))
}

// count returns how many objects of each kind the stores contain. Each form of a kind contains all of them.
func (s *stores) count() map[schema.GroupKind]int {
	s.mu.RLock()
	defer s.mu.RUnlock()

	counts := make(map[schema.GroupKind]int, len(s.kinds))

	for gk, namespaces := range s.kinds {
		forms := map[form]int{}

		for _, found := range namespaces {
			for _, c := range working(found) {
				forms[c.form] += len(c.ListKeys())
				counts[gk] = max(counts[gk], forms[c.form])
			}
		}
	}

	return counts
}

// working returns the stores without those of informers that have stopped.
func working(all []*store) []*store {
	stopped := func(c *store) bool { return c.informer != nil && c.informer.IsStopped() }
	if !slices.ContainsFunc(all, stopped) {
		return all
	}

	return slices.DeleteFunc(slices.Clone(all), stopped)
}

// errUndeclared is the error for a kind that is not declared: the client reads it. A hand-over must not name it.
var errUndeclared = errors.New("the kind is not declared")

// read returns an object, which must not be changed, or nil. The program does not cache the kind if cached is false.
func (s *stores) read(
	ctx context.Context, gvk schema.GroupVersionKind, name types.NamespacedName,
) (obj metav1.Object, cached bool, err error) {
	gk := gvk.GroupKind()

	if len(s.showing(gk, name.Namespace)) == 0 && len(s.everywhere(gk)) == 0 {
		if s.obtain == nil {
			return nil, false, nil
		}

		kind := &metav1.PartialObjectMetadata{}
		kind.SetGroupVersionKind(gvk)

		switch err := s.obtain(ctx, kind); {
		case errors.Is(err, errUndeclared):
			return nil, false, nil
		case err != nil:
			return nil, false, fmt.Errorf("cache the metadata of %s: %w", gk.Kind, err)
		}
	}

	obj, _, err = s.look(ctx, gk, name)

	return obj, true, err
}

// look returns an object as the store shows it that is furthest behind, and whether all agree about it.
func (s *stores) look(
	ctx context.Context, gk schema.GroupKind, name types.NamespacedName,
) (obj metav1.Object, agree bool, err error) {
	agree = true

	for i, c := range s.showing(gk, name.Namespace) {
		one, err := c.get(ctx, name)
		if err != nil {
			return nil, false, err
		}

		both := one != nil && obj != nil
		if i > 0 && (one != nil || obj != nil) {
			agree = agree && both && s.keys.of(one).equal(s.keys.of(obj))
		}

		if obj == nil || both && notOlder(one.GetResourceVersion(), obj.GetResourceVersion()) == behind {
			obj = one
		}
	}

	return obj, agree, nil
}

func (c *store) synced() bool { return c.informer == nil || c.informer.HasSynced() }

// get returns an object, or nil. It waits until the store has been filled.
func (c *store) get(ctx context.Context, name types.NamespacedName) (metav1.Object, error) {
	if !c.synced() && !toolscache.WaitForCacheSync(ctx.Done(), c.synced) {
		return nil, fmt.Errorf("wait for the cache of %s: %w", c.form.gvk.Kind, context.Cause(ctx))
	}

	item, exists, err := c.GetByKey(toolscache.NewObjectName(name.Namespace, name.Name).String())
	if err != nil || !exists {
		return nil, err //nolint:wrapcheck // the caller adds the object
	}

	obj, err := meta.Accessor(item)
	if err != nil {
		return nil, fmt.Errorf("the cache of %s contains a %T: %w", c.form.gvk.Kind, item, err)
	}

	return obj, nil
}

func (s *stores) endpoint(gvk schema.GroupVersionKind) endpoint {
	return func() (metadata.Getter, error) {
		s.mu.RLock()
		mapper := s.mapper
		s.mu.RUnlock()

		live := s.live()
		if live == nil || mapper == nil {
			return nil, nil //nolint:nilnil // see endpoint
		}

		mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if err != nil {
			return nil, fmt.Errorf("determine the resource of %s: %w", gvk.Kind, err)
		}

		return live.Resource(mapping.Resource), nil
	}
}

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

// liveReader returns what reads metadata from the API server; nil until the shard knows how to reach it.
func (s *Shard) liveReader() metadata.Interface { return ptr.Deref(s.live.Load(), nil) }

// inventoryOf returns the inventory of a cache, which all readers of that cache share.
func (s *Shard) inventoryOf(f form, k *kind) *inventory {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.inventories[f] == nil {
		s.inventories[f] = newInventory(s, k)
	}

	return s.inventories[f]
}

// kind returns a kind that a reconciler was wrapped for, as the one for this namespace reads it, or nil for other
// kinds. If none reads the namespace, it returns another one, whose cache contains no such object.
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

// cachedAnew is called when there is another informer of a kind. It may be behind those that have been looked at.
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

// shown returns the object if the process has cached it, or nil. Unlike read, it waits for no cache, nor makes one.
func (k *kind) shown(ctx context.Context, name types.NamespacedName) metav1.Object {
	stores := k.stores.showing(k.gvk.GroupKind(), name.Namespace)
	if len(stores) == 0 && k.stores.obtain != nil ||
		slices.ContainsFunc(stores, func(c *store) bool { return !c.synced() }) {
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

// live reads an object's metadata from the API server, even of another shard; nil if the object does not exist.
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

// patch sends a merge patch and returns the new resourceVersion. It does not use the program's client, which may hide
// what the patch changes, or start an informer to wait for it.
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
