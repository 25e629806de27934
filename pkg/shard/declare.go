package shard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Kinds are kinds whose objects a ring assigns.
type Kinds []Kind

// Kind is a kind whose objects a ring assigns: [Main] or [Controlled].
type Kind struct {
	object client.Object
	main   bool
}

// Main declares the kind of a main resource of the ring. Its objects follow no controller, even if they have one. The object is an empty one of the kind, in
// any form: typed, unstructured, or metadata.
func Main(object client.Object) Kind { return Kind{object: object, main: true} }

// Controlled declares the kind of a controlled resource of the ring. Each of its objects is at the shard of its controller. Declare each of them that
// the controllers read, write, or watch, and those between two others, such as ReplicaSets between Deployments and Pods.
func Controlled(object client.Object) Kind { return Kind{object: object} }

// declared are kinds with their declarations.
type declared map[schema.GroupKind]Kind

// of returns a declared kind, and whether the given one, or that of the objects in a list of it, is declared.
func (d declared) of(gk schema.GroupKind) (schema.GroupKind, Kind, bool) {
	kind, is := d[gk]
	if !is {
		gk.Kind = strings.TrimSuffix(gk.Kind, "List")
		kind, is = d[gk]
	}

	return gk, kind, is
}

var errNoKinds = errors.New("kinds: declare the resources of the ring, such as shard.Kinds{shard.Main(&v1.Website{}), shard.Controlled(&corev1.ConfigMap{})}")

// in returns the kinds by group and kind. The error names all that is wrong.
func (k Kinds) in(scheme *runtime.Scheme) (declared, error) {
	var errs []error

	all, mains := declared{}, 0

	for _, kind := range k {
		if absentObject(kind.object) {
			errs = append(errs, errors.New("kinds: an object is nil: pass an empty object, such as &v1.Website{}"))
			continue
		}

		gvk, err := apiutil.GVKForObject(kind.object, scheme)

		switch _, twice := all[gvk.GroupKind()]; {
		case err != nil:
			errs = append(errs, fmt.Errorf("kinds: determine the kind of %T: %w", kind.object, err))
		case twice:
			errs = append(errs, fmt.Errorf("kinds: %s is declared twice", gvk.GroupKind()))
		case kind.main:
			mains++
		}

		all[gvk.GroupKind()] = kind
	}

	if len(errs) == 0 && mains == 0 {
		errs = append(errs, errNoKinds)
	}

	return all, errors.Join(errs...)
}

func absentObject(obj client.Object) bool {
	return obj == nil || reflect.ValueOf(obj).Kind() == reflect.Pointer && reflect.ValueOf(obj).IsNil()
}

// Placement is where a controller or a runnable runs: [Sharded], [ShardedBy], [EveryReplica], or [OneReplica]. The zero value is none of them.
type Placement struct {
	where  where
	object client.Object
	// wrap returns the reconciler of a sharded controller.
	wrap func(w *wrapped, do any) (any, error)
}

type where int

const (
	nowhere where = iota
	sharded
	everyReplica
	oneReplica
)

// Sharded declares a controller that works on the objects of this shard of one of the declared kinds. Controllers that are built with builder.For, and without
// a logger of their own, need no declaration.
func Sharded(kind client.Object) Placement { return ShardedBy(kind, requested) }

func requested(r reconcile.Request) types.NamespacedName { return r.NamespacedName }

// ShardedBy declares a controller whose requests have a type of their own. The function returns the object of the kind that a request is about.
func ShardedBy[R comparable](kind client.Object, object func(R) types.NamespacedName) Placement {
	return Placement{where: sharded, object: kind, wrap: func(w *wrapped, do any) (any, error) {
		inner, ok := do.(reconcile.TypedReconciler[R])
		if !ok {
			return nil, fmt.Errorf("its requests are not of type %T, but those of %T: declare it as shard.ShardedBy with their type", *new(R), do)
		}

		return newReconciler(w, inner, object), nil
	}}
}

// validatePlacements returns what is wrong with Controllers and Runnables.
func (o Options) validatePlacements(scheme *runtime.Scheme, kinds declared) error {
	var errs []error

	for _, name := range slices.Sorted(maps.Keys(o.Controllers)) {
		p := o.Controllers[name]
		if p.where == nowhere {
			errs = append(errs, fmt.Errorf("controller %q: declare it as shard.Sharded, shard.EveryReplica, or shard.OneReplica", name))
		}

		if p.where != sharded {
			continue
		}

		if absentObject(p.object) {
			errs = append(errs, fmt.Errorf("controller %q: its kind is nil: pass an empty object, such as &v1.Website{}", name))
			continue
		}

		gvk, err := apiutil.GVKForObject(p.object, scheme)
		if _, declared := kinds[gvk.GroupKind()]; err == nil && !declared {
			err = errors.New("declare it in Kinds")
		}

		if err != nil {
			errs = append(errs, fmt.Errorf("controller %q: kind of %T: %w", name, p.object, err))
		}
	}

	for _, name := range slices.Sorted(maps.Keys(o.Runnables)) {
		if w := o.Runnables[name].where; w != everyReplica && w != oneReplica {
			errs = append(errs, fmt.Errorf("runnable %q: declare it as shard.EveryReplica or shard.OneReplica", name))
		}
	}

	return errors.Join(errs...)
}

// uses reports whether anything has the placement.
func (o Options) uses(w where) bool {
	has := func(p Placement) bool { return p.where == w }

	return slices.ContainsFunc(slices.Collect(maps.Values(o.Controllers)), has) || slices.ContainsFunc(slices.Collect(maps.Values(o.Runnables)), has)
}

// EveryReplica declares a controller or runnable that runs in every replica, also in one that waits for a slot: several processes work on the same objects at
// the same time. That is right for what works on its own replica, or reads only.
func EveryReplica() Placement { return Placement{where: everyReplica} }

// OneReplica declares a controller or runnable that runs in one replica at a time, as with leader election. The Lease of the election is in the namespace of
// the shards; see [LeaseName].
func OneReplica() Placement { return Placement{where: oneReplica} }

// LeaseName returns the name of the Lease of the election for what runs in one replica.
func LeaseName(ring string) string { return "one-replica." + ring }

// typedReconciler is a reconciler that a shard has wrapped.
type typedReconciler[R comparable] struct {
	*wrapped
	inner  reconcile.TypedReconciler[R]
	object func(R) types.NamespacedName
}

func newReconciler[R comparable](w *wrapped, inner reconcile.TypedReconciler[R], object func(R) types.NamespacedName) *typedReconciler[R] {
	w.ends = releaseOf(inner)

	return &typedReconciler[R]{wrapped: w, inner: inner, object: object}
}

// Reconcile implements reconcile.TypedReconciler.
func (r *typedReconciler[R]) Reconcile(ctx context.Context, request R) (reconcile.Result, error) {
	return r.work(ctx, r.object(request), func(ctx context.Context) (reconcile.Result, error) {
		return r.inner.Reconcile(ctx, request)
	})
}

// TypedReconciler is [Shard.Reconciler] for requests that have a type of their own. The function returns the object that a request is about.
func TypedReconciler[R comparable](
	m *Manager, obj client.Object, inner reconcile.TypedReconciler[R], object func(R) types.NamespacedName,
) reconcile.TypedReconciler[R] {
	return newReconciler(m.shard.wrap(m.shard.kindOf(m.inner.GetClient(), obj)), inner, object)
}
