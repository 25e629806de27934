// Package parameters tells the admission policies what they must know of rings. It keeps a PolicyParameter for the
// fence of each ring, and one, or a few, of all rings for the policies about Leases of shards and about webhooks.
package parameters

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/leases"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/leasemonitor/ringstatus"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Reconciler writes the parameter of each ring's fence, to which the assigner binds the policy of fences, and the pages
// about all rings. The fields are required.
type Reconciler struct {
	// Client writes, and reads ClusterRings and PolicyParameters from a cache.
	Client client.Client
	// Restores paces what is restored.
	Restores *kit.Restores
}

// Reconcile implements [reconcile.Reconciler]. A request without the name of a ring is about the pages. It returns
// errors of the API server. A conflict is an error, too: the cache is behind.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if req.Name == "" {
		return r.writePages(ctx)
	}

	return kit.Later(r.writeFence(ctx, req.Name))
}

// writeFence writes the parameter of the fence of the ring with the given name, or removes it.
func (r *Reconciler) writeFence(ctx context.Context, name string) error {
	ring := &v1alpha1.ClusterRing{}

	err := r.Client.Get(ctx, client.ObjectKey{Name: name}, ring)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read ring %s: %w", name, err)
	}

	want, err := r.parameter(ctx, ring)
	if err != nil {
		return err
	}

	if want == nil {
		return r.remove(ctx, name)
	}

	if err := controllerutil.SetOwnerReference(ring, want, r.Client.Scheme()); err != nil {
		return fmt.Errorf("let ring %s own the parameter of its fence: %w", name, err)
	}

	return r.write(ctx, want.Name, want)
}

// write creates or restores a parameter. It removes whatever others have added to the data, which a policy would
// believe. Others are recognized by what was written before by the same key.
func (r *Reconciler) write(ctx context.Context, key string, want *v1alpha1.PolicyParameter) error {
	have := &v1alpha1.PolicyParameter{}

	err := r.Client.Get(ctx, client.ObjectKeyFromObject(want), have)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read PolicyParameter %s: %w", want.Name, err)
	}

	create := err != nil

	next := have.DeepCopy()
	next.Name, next.OwnerReferences, next.Data = want.Name, want.OwnerReferences, want.Data
	next.Labels = labels.Merge(have.Labels, want.Labels)

	if !create && equality.Semantic.DeepEqual(have, next) {
		return nil
	}

	// the assigner reports it
	return r.Restores.Write(key, want, "somebody keeps changing PolicyParameter "+want.Name, func() error {
		put := func() error { return r.Client.Update(ctx, next) }
		if create {
			put = func() error { return r.Client.Create(ctx, next) }
		}

		if err := put(); err != nil {
			return fmt.Errorf("write PolicyParameter %s: %w", want.Name, err)
		}

		log.FromContext(ctx).Info("Parameter written", "parameter", want.Name)

		return nil
	})
}

// remove deletes the parameter of the ring's fence, if there is one. A ring with the same suffix may have one of this
// name.
func (r *Reconciler) remove(ctx context.Context, ring string) error {
	have := &v1alpha1.PolicyParameter{}
	name := contract.FenceName(ring)

	err := r.Client.Get(ctx, client.ObjectKey{Name: name}, have)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read PolicyParameter %s: %w", name, err)
	}

	if of, labelled := have.Labels[contract.LabelClusterRing]; have.Name == "" || labelled && of != ring {
		return nil
	}

	return r.delete(ctx, have)
}

// delete deletes a parameter that may be gone.
func (r *Reconciler) delete(ctx context.Context, have *v1alpha1.PolicyParameter) error {
	err := r.Client.Delete(ctx, have, client.Preconditions{UID: &have.UID})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete PolicyParameter %s: %w", have.Name, err)
	}

	log.FromContext(ctx).Info("Parameter removed", "parameter", have.Name)

	return nil
}

// parameter returns the parameter that the fence of the ring needs; nil if it needs none, as that of a ring which does
// not exist. Which Pods run the shards follows from the Leases.
func (r *Reconciler) parameter(ctx context.Context, ring *v1alpha1.ClusterRing) (*v1alpha1.PolicyParameter, error) {
	if ring.Spec.FenceMode() == v1alpha1.FenceOff {
		return nil, nil //nolint:nilnil // it needs none
	}

	if older, err := clusterring.FindOlder(ctx, r.Client, ring); err != nil || older != "" {
		return nil, err
	}

	leases, err := leases.Cached(ctx, r.Client, ring.Name)
	if err != nil {
		return nil, err
	}

	view := membership.RulesOf(ring).View(ring.Name, leases, nil)

	return clusterring.FenceParameter(ring, clusterring.ShardHolders(view)), nil
}

// SetupWithManager adds a controller to the manager that calls the reconciler, while this replica leads, when a ring,
// or a parameter, changes, and when Leases change otherwise than by a renewal.
func (r *Reconciler) SetupWithManager(mgr manager.Manager) error {
	// Before all fences: until a page contains a new ring, policies refuse the Leases of its shards and its webhook.
	first := func(q queue) {
		if p, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
			p.AddWithOpts(priorityqueue.AddOpts{Priority: new(1)}, reconcile.Request{})
		}
	}
	pages := handler.Funcs{
		CreateFunc: func(_ context.Context, _ event.CreateEvent, q queue) { first(q) },
		UpdateFunc: func(_ context.Context, _ event.UpdateEvent, q queue) { first(q) },
		DeleteFunc: func(_ context.Context, _ event.DeleteEvent, q queue) { first(q) },
	}
	spec := builder.WithPredicates(clusterring.SpecChanged)

	err := builder.ControllerManagedBy(mgr).
		Named("parameters").
		For(&v1alpha1.ClusterRing{}, spec).
		Watches(&v1alpha1.ClusterRing{}, pages, spec).
		Watches(&v1alpha1.ClusterRing{}, clusterring.Rivals(r.Client)).
		Watches(&coordinationv1.Lease{}, handler.EnqueueRequestsFromMapFunc(clusterring.ByLabel),
			builder.WithPredicates(ringstatus.ShardChanged)).
		Watches(&v1alpha1.PolicyParameter{}, pages, builder.WithPredicates(predicate.NewPredicateFuncs(aboutShards))).
		Watches(&v1alpha1.PolicyParameter{}, handler.EnqueueRequestsFromMapFunc(clusterring.ByLabel)).
		WithOptions(controller.Options{RateLimiter: kit.RateLimiter[reconcile.Request]()}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add the controller of policies' parameters: %w", err)
	}

	return nil
}
