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

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// stores are the caches of sharded objects in this process. A look at an object reads them, not the program's client: that would send requests for
// some forms, and copy the object.
//
//	S1  The store of every informer is registered before the informer starts, with its kind, form and namespace. It is found in the same time
//	    however many there are.
//	S2  The program may read an object from any store that shows the object. What the shard does depends on the one that is furthest behind, and
//	    on nothing while they disagree about the shard.
//	S3  Whatever the program's transforms do, the stores contain the ring's labels and annotation, and the controller of each object.
//
// controller-runtime makes an informer for each namespace and does not say which. The transform of an informer is the only part of its
// configuration that belongs to a namespace and is passed before the informer starts. Therefore, follow replaces the transforms by functions that
// name their namespace, and the informers get the program's transforms from here. Learning the namespaces from requests or from objects was
// refused: both come after the informer started, and a namespace may contain no objects.
type stores struct {
	keys ringKeys
	// live reads metadata from the API server; nil until the shard knows how to reach it.
	live func() metadata.Interface
	// selector, if set, replaces the label selectors of the cache.
	selector labels.Selector
	// obtain, if set, makes an informer for a declared kind that the program does not cache. The error is errUndeclared for other kinds.
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
	// namespace is the only one of the informer; empty if it has all, or, if rest is set, those that no other one of this form has.
	namespace string
	rest      bool
	// informer is nil if only the store is known.
	informer toolscache.SharedIndexInformer
}

func newStores(keys ringKeys, live func() metadata.Interface) *stores {
	return &stores{
		keys: keys, live: live, kinds: map[schema.GroupKind]map[string][]*store{}, named: map[schema.GroupResource]schema.GroupKind{},
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

// of returns the stores that can show objects of a resource in a namespace; an empty one stands for all. The error is errUndeclared, or says that
// the resource may be that of a kind that cannot be looked up now.
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

// everywhere returns the stores of a kind in all namespaces.
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

// errUndeclared is the error for a kind that is not declared: the client reads it, as the program does. A hand-over must not name it.
var errUndeclared = errors.New("the kind is not declared")

// read returns an object, which must not be changed, or nil. The program does not cache the kind if cached is false.
func (s *stores) read(ctx context.Context, gvk schema.GroupVersionKind, name types.NamespacedName) (obj metav1.Object, cached bool, err error) {
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

// look returns an object as the store shows it that is furthest behind, and whether all stores agree, as far as the shard is concerned.
func (s *stores) look(ctx context.Context, gk schema.GroupKind, name types.NamespacedName) (obj metav1.Object, agree bool, err error) {
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

// synced reports whether the store has been filled.
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

// endpoint returns the one of a kind.
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
