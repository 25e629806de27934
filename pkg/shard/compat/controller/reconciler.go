package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/pkg/shard/internal/within"
)

// Reconciler calls another reconciler for objects that carry the label of the shard and are not draining, and acknowledges drains: when no
// reconciler of the shard in the same manager works on the object, one patch removes the drain label and the shard label, or sets the latter to
// the shard that the drain names. The patch fails if the object has changed. [NewShardedReconciler] creates it. One that a program makes itself
// knows no manager, and waits for no other reconciler; its cache counts as new.
//
// All fields are required. They must not change after the first call of Reconcile; later changes have no effect.
//
// It does not look at the Lease: a manager calls it when it is elected. Without a leader election, as in a test, it works as if the shard held its
// Lease.
type Reconciler struct {
	// Object is an empty object of the kind that the controller reconciles.
	Object client.Object
	// Client reads objects and acknowledges drains.
	Client client.Client
	// ClusterRingName is the name of the shard's ClusterRing.
	ClusterRingName string
	// ShardName is the name of the shard.
	ShardName string
	// Do is called for objects of the shard that the cache contains.
	Do reconcile.Reconciler

	manager manager.Manager // nil: it is not known

	once  sync.Once
	inner reconcile.Reconciler
	err   error
}

var _ reconcile.Reconciler = (*Reconciler)(nil)

// Reconcile implements reconcile.Reconciler. It returns the result of Do; nothing to repeat if the object belongs to another shard, was
// released, or does not exist; and a time after which to repeat if it cannot be decided yet what to do. An error of the fields is terminal.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	inner, err := r.wrapped()
	if err != nil {
		return reconcile.Result{}, reconcile.TerminalError(err) //nolint:wrapcheck // it is wrapped
	}

	return inner.Reconcile(ctx, request) //nolint:wrapcheck // passed on
}

// wrapped returns the shard's wrapper of Do.
func (r *Reconciler) wrapped() (reconcile.Reconciler, error) {
	r.once.Do(func() {
		var s *shard.Shard

		if r.err = r.validate(); r.err == nil {
			s, r.err = r.shard()
		}

		if r.err != nil {
			r.err = fmt.Errorf("sharded reconciler: %w", r.err)
		} else {
			r.inner = s.Reconciler(r.Client, r.Object, reconcile.Func(r.present))
		}
	})

	return r.inner, r.err
}

// present calls Do for an object that exists.
func (r *Reconciler) present(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	obj, _ := r.Object.DeepCopyObject().(client.Object)
	if err := r.Client.Get(ctx, request.NamespacedName, obj); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	return r.Do.Reconcile(ctx, request) //nolint:wrapcheck // passed on
}

// shard returns the shard that the reconciler belongs to.
func (r *Reconciler) shard() (*shard.Shard, error) {
	apart := within.Apart{Identity: within.Identity{Ring: r.ClusterRingName, Name: r.ShardName}}
	if r.manager == nil {
		return shard.Without(apart)
	}

	registry, key := r.manager.GetConverterRegistry(), schema.GroupKind{Group: r.ClusterRingName, Kind: "shard " + r.ShardName}
	if c, ok := registry.GetConverter(key); ok {
		return c.(common).Shard, nil //nolint:forcetypeassert // no kind has such a name
	}

	apart.Config = r.manager.GetConfig()

	s, err := shard.Without(apart)
	if err != nil {
		return nil, err
	}

	return s, registry.RegisterConverter(key, common{s}) //nolint:wrapcheck // it was not registered
}

// common is the shard that all its reconcilers in a manager share, so that no drain is acknowledged while one of them works on the object. The
// manager's registry of converters holds it: of what a manager holds, only that can be read again. A map of this package would hold it for ever,
// and for all managers of the process.
type common struct{ *shard.Shard }

// ConvertObject implements conversion.Converter. It is never called, because no kind has such a name.
func (common) ConvertObject(context.Context, runtime.Object, runtime.Object) error {
	return errors.ErrUnsupported
}

func (r *Reconciler) validate() error {
	var errs []error

	for _, field := range []struct {
		missing bool
		problem string
	}{
		{r.Do == nil, "reconciler: pass one that is not nil"},
		{r.Object == nil, "object: set the kind with For"},
		{r.Client == nil, "client: set one with WithClient"},
		{r.ClusterRingName == "", "ring: set the name of the shard's ClusterRing with InClusterRing"},
		{r.ShardName == "", "shard name: set the identity of the shard's lock with WithShardName"},
	} {
		if field.missing {
			errs = append(errs, errors.New(field.problem))
		}
	}

	return errors.Join(errs...)
}
