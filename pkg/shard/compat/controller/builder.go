// Package controller wraps the reconcilers of a shard for programs that keep its Lease with
// [github.com/clusterring/clusterring/pkg/shard/compat/lease]. Its names are those of kubernetes-controller-sharding v0.8.0: a program that was
// written for it compiles after a change of its import paths.
//
//	err := builder.ControllerManagedBy(mgr).
//		For(&corev1.ConfigMap{}, builder.WithPredicates(controller.Predicate(ring, shard, predicates...))).
//		Owns(&corev1.Secret{}).
//		Complete(controller.NewShardedReconciler(mgr).For(&corev1.ConfigMap{}).InClusterRing(ring).WithShardName(shard).MustBuild(r))
//
// The wrapper is that of [github.com/clusterring/clusterring/pkg/shard], without what needs more than this API says. It does not stop reconciles when
// the Lease is lost: the manager does, when its election notices. Nothing waits for the handover annotation, so a controller that counts its
// children may create one twice when their owner moves. Use one manager for all reconcilers of a shard. New programs use pkg/shard.
package controller

import (
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// Builder builds a [Reconciler]. [NewShardedReconciler] creates it. Builders of one manager are not safe for concurrent use.
type Builder struct {
	reconciler Reconciler
	calls      int // of For
}

// NewShardedReconciler returns a builder that uses the client of the manager.
func NewShardedReconciler(mgr manager.Manager) *Builder {
	return (&Builder{reconciler: Reconciler{manager: mgr}}).WithClient(mgr.GetClient())
}

// For sets the kind that the controller reconciles, as an empty object in the form that the controller watches. Call it once.
func (b *Builder) For(object client.Object) *Builder {
	b.calls++
	b.reconciler.Object = object

	return b
}

// WithClient sets the client that reads objects and acknowledges drains. It should read from the cache that the controller watches.
// Default: the client of the manager.
func (b *Builder) WithClient(c client.Client) *Builder {
	b.reconciler.Client = c

	return b
}

// InClusterRing sets the name of the shard's ClusterRing.
func (b *Builder) InClusterRing(name string) *Builder {
	b.reconciler.ClusterRingName = name

	return b
}

// WithShardName sets the name of the shard: the identity of its lock.
func (b *Builder) WithShardName(name string) *Builder {
	b.reconciler.ShardName = name

	return b
}

// MustBuild is [Builder.Build], but panics instead of returning an error.
func (b *Builder) MustBuild(r reconcile.Reconciler) reconcile.Reconciler {
	wrapped, err := b.Build(r)
	utilruntime.Must(err)

	return wrapped
}

// Build wraps the reconciler, and returns a [Reconciler]. The error names everything that is missing or wrong.
func (b *Builder) Build(r reconcile.Reconciler) (reconcile.Reconciler, error) {
	if b.calls > 1 {
		return nil, errors.New("sharded reconciler: call For only once: each kind has a reconciler of its own")
	}

	built := &Reconciler{
		Object: b.reconciler.Object, Client: b.reconciler.Client,
		ClusterRingName: b.reconciler.ClusterRingName, ShardName: b.reconciler.ShardName, Do: r,
		manager: b.reconciler.manager,
	}
	if _, err := built.wrapped(); err != nil {
		return nil, err
	}

	return built, nil
}

// Predicate returns a predicate that passes every event of an object that carries the drain label of the ring. It passes an event of
// another object if the object carries the label of the shard, and all given predicates pass the event. Use it for the kind of a
// [Reconciler]: a predicate like GenerationChangedPredicate would hide drains.
func Predicate(clusterRingName, shardName string, predicates ...predicate.Predicate) predicate.Predicate {
	keys := contract.LabelKeysOf(clusterRingName, "")

	return predicate.Or(
		predicate.NewPredicateFuncs(func(obj client.Object) bool {
			return metav1.HasLabel(metav1.ObjectMeta{Labels: obj.GetLabels()}, keys.Drain)
		}),
		predicate.And(predicate.NewPredicateFuncs(func(obj client.Object) bool { return obj.GetLabels()[keys.Shard] == shardName }), predicate.And(predicates...)),
	)
}
