package shard

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// follow makes a cache with these options register its informers.
func (s *stores) follow(o *cache.Options, sch *runtime.Scheme) error {
	if s.scheme, s.defaults = sch, *o; sch == nil {
		s.scheme = scheme.Scheme
	}

	keys, err := keysOf(s.scheme, o.ByObject)
	if err != nil {
		return err
	}

	s.byObject = make(map[schema.GroupVersionKind]cache.ByObject, len(keys))
	o.ByObject, o.DefaultNamespaces, o.DefaultTransform = maps.Clone(o.ByObject), s.signed(o.DefaultNamespaces), nil

	for gvk, key := range keys {
		kind := o.ByObject[key]
		s.byObject[gvk] = kind
		kind.Namespaces, kind.Transform, kind.EnableWatchBookmarks = s.signed(kind.Namespaces), nil, nil
		kind.Label = cmp.Or(s.selector, kind.Label)
		o.ByObject[key] = kind
	}

	// What waits for another shard's objects needs bookmarks.
	o.DefaultLabelSelector, o.DefaultEnableWatchBookmarks = cmp.Or(s.selector, o.DefaultLabelSelector), nil

	inner := o.NewInformer
	if inner == nil {
		inner = toolscache.NewSharedIndexInformer
	}

	o.NewInformer = func(lw toolscache.ListerWatcher, obj runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		informer := inner(lw, obj, resync, indexers)

		gvk, err := apiutil.GVKForObject(obj, s.scheme)
		if err != nil {
			return informer // it is of no kind that a ring could have
		}

		return &followed{SharedIndexInformer: informer, stores: s, form: form{gvk, reflect.TypeOf(obj)}}
	}

	return nil
}

// late is a selector that is evaluated when an informer lists or watches, because the shard gets its name only then.
type late struct {
	labels.Selector // for nobody: the cache needs only the text
	is              func() labels.Selector
}

// String implements [labels.Selector].
func (l late) String() string { return l.is().String() }

// signed replaces the transforms of the namespaces by functions that name the namespace, if they get a place for that.
func (s *stores) signed(namespaces map[string]cache.Config) map[string]cache.Config {
	namespaces = maps.Clone(namespaces)
	for namespace, config := range namespaces {
		config.LabelSelector, config.EnableWatchBookmarks = cmp.Or(s.selector, config.LabelSelector), nil
		config.Transform = func(in any) (any, error) {
			if place, ok := in.(**string); ok {
				*place = &namespace
			}

			return in, nil
		}
		namespaces[namespace] = config
	}

	return namespaces
}

// namespacesOf returns the configuration of the namespaces of a kind; empty if they are all.
func namespacesOf(kind cache.ByObject, defaults cache.Options) map[string]cache.Config {
	if kind.Namespaces == nil {
		return defaults.DefaultNamespaces
	}

	return kind.Namespaces
}

// configOf returns the selectors and the transform of a kind in a namespace, or without one, by the precedence that controller-runtime documents.
func configOf(kind cache.ByObject, o cache.Options, namespace *string) cache.Config {
	layers := []cache.Config{
		{LabelSelector: kind.Label, FieldSelector: kind.Field, Transform: kind.Transform},
		{LabelSelector: o.DefaultLabelSelector, FieldSelector: o.DefaultFieldSelector, Transform: o.DefaultTransform},
	}
	if namespace != nil {
		layers = []cache.Config{namespacesOf(kind, o)[*namespace], layers[0], o.DefaultNamespaces[*namespace], layers[1]}
	}

	var c cache.Config
	for _, layer := range layers {
		c.LabelSelector, c.FieldSelector = cmp.Or(c.LabelSelector, layer.LabelSelector), cmp.Or(c.FieldSelector, layer.FieldSelector)

		if c.Transform == nil {
			c.Transform = layer.Transform
		}
	}

	return c
}

// namespaces returns the namespaces in which the program caches a namespaced kind.
func (s *stores) namespaces(gvk schema.GroupVersionKind) []string {
	configs := namespacesOf(s.byObject[gvk], s.defaults)
	if _, all := configs[metav1.NamespaceAll]; all || len(configs) == 0 {
		return allNamespaces
	}

	return slices.Sorted(maps.Keys(configs))
}

// followed is an informer that is registered when it gets its transform. The cache sets one, or nil, before it starts the informer.
type followed struct {
	toolscache.SharedIndexInformer
	stores *stores
	form   form
}

// SetTransform implements [toolscache.SharedInformer].
func (f *followed) SetTransform(signs toolscache.TransformFunc) error {
	var namespace *string
	if signs != nil {
		if _, err := signs(&namespace); err != nil {
			return err
		}
	}

	s := f.stores
	if inner := configOf(s.byObject[f.form.gvk], s.defaults, namespace).Transform; inner != nil {
		if err := f.SharedIndexInformer.SetTransform(s.keeping(inner)); err != nil {
			return fmt.Errorf("set the transform of the cache of %s: %w", f.form.gvk.Kind, err)
		}
	}

	c := &store{Store: f.GetStore(), form: f.form, endpoint: s.endpoint(f.form.gvk), informer: f}
	if namespace != nil {
		c.namespace, c.rest = *namespace, *namespace == metav1.NamespaceAll
	}

	s.add(c, schema.GroupResource{})

	if s.observe != nil {
		s.observe(f.form.gvk.GroupKind(), f)
	}

	return nil
}

// keeping returns a transform that does what the inner one does, and keeps what the shard needs.
func (s *stores) keeping(inner toolscache.TransformFunc) toolscache.TransformFunc {
	return func(in any) (any, error) {
		before, err := meta.Accessor(in)
		if err != nil {
			return inner(in) // the last known state of a deleted object
		}

		was, controller := s.keys.of(before), metav1.GetControllerOf(before)

		out, err := inner(in)
		if err != nil {
			return nil, err
		}

		after, err := meta.Accessor(out)
		if err != nil {
			return nil, fmt.Errorf("the cache's transform made a %T of a %T: it must return an object: %w", out, in, err)
		}

		if !s.keys.of(after).equal(was) {
			s.keys.set(after, was, true)
		}

		if controller != nil && metav1.GetControllerOfNoCopy(after) == nil {
			after.SetOwnerReferences(append(slices.Clone(after.GetOwnerReferences()), *controller))
		}

		return out, nil
	}
}

// checkCache returns an error that names what the options demand of the cache of sharded kinds and what a shard cannot do.
func checkCache(options manager.Options, kinds declared) error {
	sch, o := options.Scheme, options.Cache
	if sch == nil {
		sch = scheme.Scheme
	}

	keys, err := keysOf(sch, o.ByObject)
	errs := []error{err}

	if options.NewCache != nil {
		errs = append(errs, errors.New("remove NewCache: the shard makes the cache of sharded kinds"))
	}

	for _, declared := range kinds {
		gvk, err := apiutil.GVKForObject(declared.object, sch)
		errs = append(errs, err)
		kind := o.ByObject[keys[gvk]]

		places := []*string{nil}
		if configs := namespacesOf(kind, o); len(configs) > 0 {
			places = places[1:]
			for namespace := range configs {
				places = append(places, &namespace)
			}
		}

		if slices.ContainsFunc(places, func(namespace *string) bool {
			c := configOf(kind, o, namespace)

			return c.LabelSelector != nil && !c.LabelSelector.Empty() || c.FieldSelector != nil && !c.FieldSelector.Empty()
		}) {
			errs = append(errs, fmt.Errorf("remove the label and field selectors of %s: the shard could not release objects that they hide", gvk.Kind))
		}
	}

	return errors.Join(errs...)
}

// keysOf returns the objects that represent the kinds in the map, whose keys are pointers.
func keysOf(sch *runtime.Scheme, byObject map[client.Object]cache.ByObject) (map[schema.GroupVersionKind]client.Object, error) {
	keys := make(map[schema.GroupVersionKind]client.Object, len(byObject))
	for obj := range byObject {
		gvk, err := apiutil.GVKForObject(obj, sch)
		if err != nil {
			return nil, fmt.Errorf("determine the kind of %T: %w", obj, err)
		}

		keys[gvk] = obj
	}

	return keys, nil
}
