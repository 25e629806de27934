package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	_ "github.com/clusterring/clusterring/pkg/shard" // sets the hooks
	"github.com/clusterring/clusterring/pkg/shard/internal/hook"
)

// Reconciler calls another reconciler for objects that carry the label of the shard and are not draining, and acknowledges drains: when no
// reconciler of the shard works on the object, one patch removes the drain label and the shard label, or sets the latter to the shard
// that the drain names. The patch fails if the object has changed. [NewShardedReconciler] creates it.
//
// All fields are required. They must not change after the first call of Reconcile; later changes have no effect.
//
// The lock of the shard must be made before the first reconcile, and, if the Lease is to announce the hold-off, the reconciler must be built
// before the Lease is taken. Without a lock of NewResourceLock in this process, as in a test, the reconciler works as if the shard held its
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
	// Do is called for objects of the shard. Its context ends when the shard loses its Lease.
	Do reconcile.Reconciler

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
	r.once.Do(func() { r.inner, r.err = r.wrap() })

	return r.inner, r.err
}

func (r *Reconciler) wrap() (reconcile.Reconciler, error) {
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("sharded reconciler: %w", err)
	}

	wrapped, err := hook.Wrap(hook.Wrapped{
		Identity: hook.Identity{Ring: r.ClusterRingName, Name: r.ShardName}, Client: r.Client, Object: r.Object, Do: r.Do,
	})
	if err != nil {
		return nil, fmt.Errorf("sharded reconciler: %w", err)
	}

	return wrapped, nil
}

func (r *Reconciler) validate() error {
	var errs []error
	if r.Do == nil {
		errs = append(errs, errors.New("reconciler: pass one that is not nil"))
	}

	if r.Object == nil {
		errs = append(errs, errors.New("object: set the kind with For"))
	}

	if r.Client == nil {
		errs = append(errs, errors.New("client: set one with WithClient"))
	}

	if r.ClusterRingName == "" {
		errs = append(errs, errors.New("ring: set the name of the shard's ClusterRing with InClusterRing"))
	}

	if r.ShardName == "" {
		errs = append(errs, errors.New("shard name: set the identity of the shard's lock with WithShardName"))
	}

	return errors.Join(errs...)
}
