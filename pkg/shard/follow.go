package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
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
		kind.Namespaces, kind.Transform = s.signed(kind.Namespaces), nil
		kind.Label, kind.Field = s.unlessTweaked(kind.Label, kind.Field)
		o.ByObject[key] = kind
	}

	o.DefaultLabelSelector, o.DefaultFieldSelector = s.unlessTweaked(o.DefaultLabelSelector, o.DefaultFieldSelector)

	inner := o.NewInformer
	if inner == nil {
		inner = toolscache.NewSharedIndexInformer
	}

	o.NewInformer = func(lw toolscache.ListerWatcher, obj runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		informer := inner(s.restricted(lw), obj, resync, indexers)

		gvk, err := apiutil.GVKForObject(obj, s.scheme)
		if err != nil {
			return informer // it is of no kind that a ring could have
		}

		return &followed{SharedIndexInformer: informer, stores: s, form: form{gvk, reflect.TypeOf(obj)}}
	}

	return nil
}

// signature is what a transform of [signed] fills in instead of transforming it.
type signature struct {
	namespace string
	signed    bool
}

// signed replaces the transforms of the namespaces by functions that name the namespace.
func (s *stores) signed(namespaces map[string]cache.Config) map[string]cache.Config {
	namespaces = maps.Clone(namespaces)
	for namespace, config := range namespaces {
		config.Transform = func(in any) (any, error) {
			if page, ok := in.(*signature); ok {
				*page = signature{namespace, true}
			}

			return in, nil
		}
		config.LabelSelector, config.FieldSelector = s.unlessTweaked(config.LabelSelector, config.FieldSelector)
		namespaces[namespace] = config
	}

	return namespaces
}

// unlessTweaked returns the selectors, or none where the informers get another one. Even an empty selector would replace that.
func (s *stores) unlessTweaked(label labels.Selector, field fields.Selector) (labels.Selector, fields.Selector) {
	if s.tweak != nil {
		return nil, nil
	}

	return label, field
}

// transform returns the program's transform for a kind in a namespace, by the precedence that controller-runtime documents.
func (s *stores) transform(gvk schema.GroupVersionKind, at signature) toolscache.TransformFunc {
	kind := s.byObject[gvk]

	all := []toolscache.TransformFunc{kind.Transform, s.defaults.DefaultTransform}
	if at.signed {
		all = []toolscache.TransformFunc{
			namespacesOf(kind, s.defaults)[at.namespace].Transform, kind.Transform, s.defaults.DefaultNamespaces[at.namespace].Transform, s.defaults.DefaultTransform,
		}
	}

	if i := slices.IndexFunc(all, func(t toolscache.TransformFunc) bool { return t != nil }); i >= 0 {
		return all[i]
	}

	return nil
}

// namespacesOf returns the configuration of the namespaces of a kind; empty if they are all.
func namespacesOf(kind cache.ByObject, defaults cache.Options) map[string]cache.Config {
	if kind.Namespaces == nil {
		return defaults.DefaultNamespaces
	}

	return kind.Namespaces
}

// namespaces returns the namespaces in which the program caches a namespaced kind.
func (s *stores) namespaces(gvk schema.GroupVersionKind) []string {
	configs := namespacesOf(s.byObject[gvk], s.defaults)
	if _, all := configs[metav1.NamespaceAll]; all || len(configs) == 0 {
		return allNamespaces
	}

	return slices.Sorted(maps.Keys(configs))
}

// restricted returns what lists and watches only what the shard may see.
func (s *stores) restricted(lw toolscache.ListerWatcher) toolscache.ListerWatcher {
	if s.tweak == nil {
		return lw
	}

	inner := toolscache.ToListerWatcherWithContext(lw)

	return toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			s.tweak(&o)

			return inner.ListWithContext(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			s.tweak(&o)

			return inner.WatchWithContext(ctx, o)
		},
	}, lw)
}

// followed is an informer that is registered when it gets its transform. The cache sets one, or nil, before it starts the informer.
type followed struct {
	toolscache.SharedIndexInformer
	stores *stores
	form   form
}

// SetTransform implements [toolscache.SharedInformer].
func (f *followed) SetTransform(signs toolscache.TransformFunc) error {
	var at signature
	if signs != nil {
		if _, err := signs(&at); err != nil {
			return err
		}
	}

	s := f.stores
	if inner := s.transform(f.form.gvk, at); inner != nil {
		if err := f.SharedIndexInformer.SetTransform(s.keeping(inner)); err != nil {
			return fmt.Errorf("set the transform of the cache of %s: %w", f.form.gvk.Kind, err)
		}
	}

	s.add(&store{
		Store: f.GetStore(), form: f.form, endpoint: s.endpoint(f.form.gvk), namespace: at.namespace, rest: at.signed && at.namespace == "", informer: f,
	}, schema.GroupResource{})

	for _, observe := range s.observers {
		observe(f.form.gvk.GroupKind(), f)
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

		was, controller := s.marks(before), metav1.GetControllerOf(before)

		out, err := inner(in)
		if err != nil {
			return nil, err
		}

		after, err := meta.Accessor(out)
		if err != nil {
			return nil, fmt.Errorf("the cache's transform made a %T of a %T: it must return an object: %w", out, in, err)
		}

		if !maps.Equal(s.marks(after), was) {
			after.SetLabels(marked(after.GetLabels(), was, s.keys.Shard, s.keys.Drain))
			after.SetAnnotations(marked(after.GetAnnotations(), was, s.keys.Handover))
		}

		if controller != nil && metav1.GetControllerOfNoCopy(after) == nil {
			after.SetOwnerReferences(append(slices.Clone(after.GetOwnerReferences()), *controller))
		}

		return out, nil
	}
}

// marks returns the labels and annotations of the ring that an object has.
func (s *stores) marks(obj metav1.Object) map[string]string {
	found, has := map[string]string{}, obj.GetLabels()
	maps.Copy(found, marked(nil, has, s.keys.Shard, s.keys.Drain))
	maps.Copy(found, marked(nil, obj.GetAnnotations(), s.keys.Handover))

	return found
}

// marked returns a copy of the labels or annotations, with the values that the marks have for the keys.
func marked(all, marks map[string]string, keys ...string) map[string]string {
	all = maps.Clone(all)

	for _, key := range keys {
		value, is := marks[key]

		switch {
		case !is:
			delete(all, key)
		case all == nil:
			all = map[string]string{key: value}
		default:
			all[key] = value
		}
	}

	return all
}

// checkCache returns an error that names what the options demand of the cache of sharded kinds and what a shard cannot do.
func checkCache(options manager.Options, kinds []client.Object) error {
	sch, o := options.Scheme, options.Cache
	if sch == nil {
		sch = scheme.Scheme
	}

	keys, err := keysOf(sch, o.ByObject)
	errs := []error{err}

	if options.NewCache != nil {
		errs = append(errs, errors.New("remove NewCache: the shard makes the cache of sharded kinds"))
	}

	for _, obj := range kinds {
		gvk, err := apiutil.GVKForObject(obj, sch)
		errs = append(errs, err)
		kind := o.ByObject[keys[gvk]]

		configs := namespacesOf(kind, o)
		if len(configs) == 0 {
			configs = map[string]cache.Config{metav1.NamespaceAll: {}}
		}

		for _, namespace := range slices.Sorted(maps.Keys(configs)) {
			config, defaults := configs[namespace], o.DefaultNamespaces[namespace]
			label := cmp.Or(config.LabelSelector, kind.Label, defaults.LabelSelector, o.DefaultLabelSelector)
			field := cmp.Or(config.FieldSelector, kind.Field, defaults.FieldSelector, o.DefaultFieldSelector)
			bookmarks := cmp.Or(config.EnableWatchBookmarks, kind.EnableWatchBookmarks, defaults.EnableWatchBookmarks, o.DefaultEnableWatchBookmarks)

			if label != nil && !label.Empty() {
				errs = append(errs, fmt.Errorf("%s: remove the label selector %q: the shard could not release objects that it hides", gvk.Kind, label))
			}

			if field != nil && !field.Empty() {
				errs = append(errs, fmt.Errorf("%s: remove the field selector %q: the shard could not release objects that it hides", gvk.Kind, field))
			}

			if bookmarks != nil && !*bookmarks {
				errs = append(errs, fmt.Errorf("%s: do not disable watch bookmarks: objects that come from another shard wait for them", gvk.Kind))
			}
		}
	}

	return errors.Join(errs...)
}
