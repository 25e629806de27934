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

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

var errStandby = errors.New("this process does not work as a shard yet, so its cache has no objects of sharded " +
	"kinds: read with GetAPIReader of the manager")

// split is a cache in two parts. That of the sharded kinds, in any version and form, starts when the shard has its
// name, and contains only objects of this shard. The other one starts with the manager, so that webhooks and what runs
// in every replica also work while the process waits for a slot.
type split struct {
	cache.Cache // of all other kinds

	sharded cache.Cache
	scheme  *runtime.Scheme
	kinds   declared
	// begun is closed when the shard has its name.
	begun <-chan struct{}
}

func (c *split) of(gvk schema.GroupVersionKind) (cache.Cache, bool) {
	if _, _, is := c.kinds.of(gvk.GroupKind()); is {
		return c.sharded, true
	}

	return c.Cache, false
}

func (c *split) with(obj runtime.Object) (cache.Cache, bool, error) {
	gvk, err := apiutil.GVKForObject(obj, c.scheme)
	if err != nil {
		return nil, false, fmt.Errorf("determine the kind of %T: %w", obj, err)
	}

	part, sharded := c.of(gvk)

	return part, sharded, nil
}

// readable returns the part that contains the object, if it can be read. An event handler of a controller waits for
// that: its watches of other kinds start earlier, and it would lose the event.
func (c *split) readable(ctx context.Context, obj runtime.Object) (cache.Cache, error) {
	part, sharded, err := c.with(obj)
	if err != nil || !sharded || closed(c.begun) {
		return part, err
	}

	if _, ok := ctx.Value(markKey{}).(mark); !ok || controller.ReconcileIDFromContext(ctx) != "" {
		return nil, errStandby
	}

	if !waitFor(ctx, c.begun) || !part.WaitForCacheSync(ctx) {
		return nil, context.Cause(ctx)
	}

	return part, nil
}

func (c *split) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	part, err := c.readable(ctx, obj)
	if err != nil {
		return err
	}

	return part.Get(ctx, key, obj, opts...) //nolint:wrapcheck // it is the cache's
}

func (c *split) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	part, err := c.readable(ctx, list)
	if err != nil {
		return err
	}

	return part.List(ctx, list, opts...) //nolint:wrapcheck // it is the cache's
}

func (c *split) GetInformer(
	ctx context.Context, obj client.Object, opts ...cache.InformerGetOption,
) (cache.Informer, error) {
	part, sharded, err := c.with(obj)
	if err != nil {
		return nil, err
	}

	if err := c.await(ctx, sharded); err != nil {
		return nil, err
	}

	return part.GetInformer(ctx, obj, opts...) //nolint:wrapcheck // it is the cache's
}

func (c *split) GetInformerForKind(
	ctx context.Context, gvk schema.GroupVersionKind, opts ...cache.InformerGetOption,
) (cache.Informer, error) {
	part, sharded := c.of(gvk)
	if err := c.await(ctx, sharded); err != nil {
		return nil, err
	}

	return part.GetInformerForKind(ctx, gvk, opts...) //nolint:wrapcheck // it is the cache's
}

// await makes a controller that starts wait for the name of the shard before it gets an informer of a sharded kind.
func (c *split) await(ctx context.Context, sharded bool) error {
	if _, ok := ctx.Value(markKey{}).(mark); ok && sharded && !waitFor(ctx, c.begun) {
		return context.Cause(ctx)
	}

	return nil
}

// inform makes the informers of those objects that are sharded, or of the others. It does not wait for them.
func (c *split) inform(ctx context.Context, sharded bool, objects []client.Object) error {
	var errs []error

	for _, obj := range objects {
		part, is, err := c.with(obj)
		if err == nil && is == sharded {
			_, err = part.GetInformer(ctx, obj, cache.BlockUntilSynced(false))
		}

		errs = append(errs, err)
	}

	return errors.Join(errs...)
}

func (c *split) RemoveInformer(ctx context.Context, obj client.Object) error {
	part, _, err := c.with(obj)
	if err != nil {
		return err
	}

	return part.RemoveInformer(ctx, obj) //nolint:wrapcheck // it is the cache's
}

func (c *split) IndexField(ctx context.Context, obj client.Object, field string, extract client.IndexerFunc) error {
	part, _, err := c.with(obj)
	if err != nil {
		return err
	}

	return part.IndexField(ctx, obj, field, extract) //nolint:wrapcheck // it is the cache's
}

// Start implements cache.Informers. It starts the part of the sharded kinds when the shard has its name.
func (c *split) Start(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.Cache.Start(ctx) })
	group.Go(func() error {
		if !waitFor(ctx, c.begun) {
			return nil
		}

		return c.sharded.Start(ctx)
	})

	return group.Wait() //nolint:wrapcheck // it is the cache's
}

// WaitForCacheSync implements cache.Informers. While the shard has no name, it waits for other kinds only.
func (c *split) WaitForCacheSync(ctx context.Context) bool {
	return c.Cache.WaitForCacheSync(ctx) && (!closed(c.begun) || c.sharded.WaitForCacheSync(ctx))
}

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

	o.NewInformer = func(lw toolscache.ListerWatcher, obj runtime.Object, resync time.Duration,
		indexers toolscache.Indexers) toolscache.SharedIndexInformer {
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

// configOf returns the selectors and the transform of a kind in a namespace, or without one, by the precedence that
// controller-runtime documents.
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
		c.LabelSelector, c.FieldSelector = cmp.Or(c.LabelSelector, layer.LabelSelector),
			cmp.Or(c.FieldSelector, layer.FieldSelector)

		if c.Transform == nil {
			c.Transform = layer.Transform
		}
	}

	return c
}

func (s *stores) namespaces(gvk schema.GroupVersionKind) []string {
	configs := namespacesOf(s.byObject[gvk], s.defaults)
	if _, all := configs[metav1.NamespaceAll]; all || len(configs) == 0 {
		return allNamespaces
	}

	return slices.Sorted(maps.Keys(configs))
}

// followed is an informer that is registered when the cache sets its transform, before it starts.
type followed struct {
	toolscache.SharedIndexInformer
	stores *stores
	form   form
}

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

// checkCache returns an error that names what the options demand of the cache of sharded kinds, and a shard cannot do.
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
			errs = append(errs, fmt.Errorf("remove the label and field selectors of %s: the shard could not release objects "+
				"that they hide", gvk.Kind))
		}
	}

	return errors.Join(errs...)
}

func keysOf(s *runtime.Scheme, of map[client.Object]cache.ByObject) (map[schema.GroupVersionKind]client.Object, error) {
	keys := make(map[schema.GroupVersionKind]client.Object, len(of))
	for obj := range of {
		gvk, err := apiutil.GVKForObject(obj, s)
		if err != nil {
			return nil, fmt.Errorf("determine the kind of %T: %w", obj, err)
		}

		keys[gvk] = obj
	}

	return keys, nil
}

// watchedNamespaces returns the namespaces in which a manager with these options, which checkCache has accepted,
// watches any of the kinds, sorted; none if it watches one of them everywhere.
func watchedNamespaces(o manager.Options, kinds declared) []string {
	keys, err := keysOf(o.Scheme, o.Cache.ByObject)
	all := sets.New[string]()

	for _, kind := range kinds {
		gvk, unknown := apiutil.GVKForObject(kind.object, o.Scheme)
		in := namespacesOf(o.Cache.ByObject[keys[gvk]], o.Cache)

		if _, everywhere := in[metav1.NamespaceAll]; everywhere || len(in) == 0 || err != nil || unknown != nil {
			return nil
		}

		all.Insert(slices.Collect(maps.Keys(in))...)
	}

	return sets.List(all)
}

// watchedBy returns the namespaces that a Lease announces, separated by commas; empty for all.
func watchedBy(lease *coordinationv1.Lease) string {
	if lease.Spec.RenewTime == nil {
		return ""
	}

	return contract.Namespaces(lease.Annotations, lease.Spec.RenewTime.Time)
}
