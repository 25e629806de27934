// Package controller wraps the reconcilers of a shard for programs that keep its Lease with
// [github.com/clusterring/clusterring/pkg/shard/compat/lease]. Its names are those of kubernetes-controller-sharding
// v0.8.0: a program that was written for it compiles after a change of its import paths.
//
//	err := builder.ControllerManagedBy(mgr).
//		For(&corev1.ConfigMap{}, builder.WithPredicates(controller.Predicate(ring, shard, predicates...))).
//		Owns(&corev1.Secret{}).
//		Complete(controller.NewShardedReconciler(mgr).For(&corev1.ConfigMap{}).InClusterRing(ring).
//			WithShardName(shard).MustBuild(r))
//
// The wrapper is that of [github.com/clusterring/clusterring/pkg/shard], without what needs more than this API says. It
// does not stop reconciles when the Lease is lost: the manager does, when its election notices. Nothing waits for the
// handover annotation, so a controller that counts its children may create one twice when their owner moves. Use one
// manager for all reconcilers of a shard. New programs use pkg/shard.
package controller

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/pkg/shard/internal/within"
)

// Builder wraps a reconciler. [NewShardedReconciler] creates it. Builders of a manager are not for concurrent use.
type Builder struct {
	manager         manager.Manager
	object          client.Object
	client          client.Client
	ring, shardName string
}

// NewShardedReconciler returns a builder that uses the client of the manager.
func NewShardedReconciler(mgr manager.Manager) *Builder {
	return &Builder{manager: mgr, client: mgr.GetClient()}
}

// For sets the kind that the controller reconciles, an empty object in the form that it watches. Required.
func (b *Builder) For(object client.Object) *Builder {
	b.object = object

	return b
}

// WithClient sets the client that reads objects. It should read the controller's cache. Default: that of the manager.
func (b *Builder) WithClient(c client.Client) *Builder {
	b.client = c

	return b
}

// InClusterRing sets the name of the shard's ClusterRing. Required.
func (b *Builder) InClusterRing(name string) *Builder {
	b.ring = name

	return b
}

// WithShardName sets the name of the shard: the identity of its lock. Required.
func (b *Builder) WithShardName(name string) *Builder {
	b.shardName = name

	return b
}

// MustBuild is [Builder.Build], but panics instead of returning an error.
func (b *Builder) MustBuild(r reconcile.Reconciler) reconcile.Reconciler {
	wrapped, err := b.Build(r)
	utilruntime.Must(err)

	return wrapped
}

// Build wraps the reconciler. The result calls it for objects that the cache contains, that carry the label of the
// shard, and that are not draining. It acknowledges drains: when no reconciler of the shard in the same manager works
// on the object, one patch removes the drain label and the shard label, or sets the latter to the shard that the drain
// names. The patch fails if the object has changed. The result does not look at the Lease: a manager calls it when it
// is elected. The error says what is missing or wrong.
func (b *Builder) Build(r reconcile.Reconciler) (reconcile.Reconciler, error) {
	if b.object == nil || b.shardName == "" || r == nil {
		return nil, errors.New("sharded reconciler: For, WithShardName, and a reconciler that is not nil are required")
	}

	s, err := b.shard()
	if err != nil {
		return nil, fmt.Errorf("sharded reconciler: %w", err)
	}

	c, object := b.client, b.object

	return s.Reconciler(c, object,
		reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
			obj, _ := object.DeepCopyObject().(client.Object)
			if err := c.Get(ctx, request.NamespacedName, obj); err != nil {
				return reconcile.Result{}, client.IgnoreNotFound(err)
			}

			return r.Reconcile(ctx, request)
		})), nil
}

// shard returns the shard that all reconcilers of its name in the manager share.
func (b *Builder) shard() (*shard.Shard, error) {
	registry, key := b.manager.GetConverterRegistry(), schema.GroupKind{Group: b.ring, Kind: "shard " + b.shardName}
	if c, ok := registry.GetConverter(key); ok {
		return c.(common).Shard, nil //nolint:forcetypeassert // no kind has such a name
	}

	s, err := shard.Without(within.Shard{Ring: b.ring, Name: b.shardName, Config: b.manager.GetConfig()})
	if err != nil {
		return nil, err
	}

	return s, registry.RegisterConverter(key, common{s}) //nolint:wrapcheck // it was not registered
}

// common is the shard that all its reconcilers in a manager share, so that no drain is acknowledged while one of them
// works on the object. The manager's registry of converters holds it: of what a manager holds, only that can be read
// again. A map of this package would hold it for ever, and for all managers of the process.
type common struct{ *shard.Shard }

// ConvertObject implements conversion.Converter. It is never called, because no kind has such a name.
func (common) ConvertObject(context.Context, runtime.Object, runtime.Object) error {
	return errors.ErrUnsupported
}

// Predicate returns a predicate that passes every event of an object that carries the drain label of the ring. It
// passes an event of another object if the object carries the label of the shard, and all given predicates pass the
// event. Use it for the kind of a [Builder]: a predicate like GenerationChangedPredicate would hide drains.
func Predicate(clusterRingName, shardName string, predicates ...predicate.Predicate) predicate.Predicate {
	keys := contract.LabelKeysOf(clusterRingName, "")

	drained := predicate.NewPredicateFuncs(func(obj client.Object) bool {
		_, drained := obj.GetLabels()[keys.Drain]
		return drained
	})
	assigned := predicate.NewPredicateFuncs(func(obj client.Object) bool {
		return obj.GetLabels()[keys.Shard] == shardName
	})

	return predicate.Or(drained, predicate.And(assigned, predicate.And(predicates...)))
}
