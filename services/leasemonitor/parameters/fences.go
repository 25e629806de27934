// Package parameters tells the admission policies what they must know of rings. It keeps a PolicyParameter for the
// fence of each ring, and one, or a few, of all rings for the policies about Leases of shards and about webhooks.
package parameters

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/leases"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/leasemonitor/ringstatus"
)

// Writer writes parameters. The fields are required.
type Writer struct {
	// Client writes, and reads ClusterRings and PolicyParameters from a cache.
	Client client.Client
	// Restores paces what is restored.
	Restores *kit.Restores
}

// write creates or restores a parameter. It removes whatever others have added to the data, which a policy would
// believe. Others are recognized by what was written before by the same key.
func (w Writer) write(ctx context.Context, key string, want *v1alpha1.PolicyParameter) error {
	have := &v1alpha1.PolicyParameter{}

	err := w.Client.Get(ctx, client.ObjectKeyFromObject(want), have)
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
	return w.Restores.Write(key, want, "somebody keeps changing PolicyParameter "+want.Name, func() error {
		put := func() error { return w.Client.Update(ctx, next) }
		if create {
			put = func() error { return w.Client.Create(ctx, next) }
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
func (w Writer) remove(ctx context.Context, ring string) error {
	have := &v1alpha1.PolicyParameter{}
	name := contract.FenceName(ring)

	err := w.Client.Get(ctx, client.ObjectKey{Name: name}, have)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read PolicyParameter %s: %w", name, err)
	}

	if of, labelled := have.Labels[contract.LabelClusterRing]; have.Name == "" || labelled && of != ring {
		return nil
	}

	return w.delete(ctx, have)
}

// delete deletes a parameter that may be gone.
func (w Writer) delete(ctx context.Context, have *v1alpha1.PolicyParameter) error {
	err := w.Client.Delete(ctx, have, client.Preconditions{UID: &have.UID})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete PolicyParameter %s: %w", have.Name, err)
	}

	log.FromContext(ctx).Info("Parameter removed", "parameter", have.Name)

	return nil
}

// Fences writes the parameter of each ring's fence. The assigner binds the policy of fences to it.
type Fences struct{ Writer }

// Reconcile implements [reconcile.Reconciler]. It returns errors of the API server. A conflict is an error, too: the
// cache is behind.
func (r *Fences) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	ring := &v1alpha1.ClusterRing{}

	err := r.Client.Get(ctx, req.NamespacedName, ring)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("read ring %s: %w", req.Name, err)
	}

	var want *v1alpha1.PolicyParameter

	if err == nil {
		if want, err = r.parameter(ctx, ring); err != nil {
			return reconcile.Result{}, err
		}
	}

	if want == nil {
		return reconcile.Result{}, r.remove(ctx, req.Name)
	}

	if err := controllerutil.SetOwnerReference(ring, want, r.Client.Scheme()); err != nil {
		return reconcile.Result{}, fmt.Errorf("let ring %s own the parameter of its fence: %w", ring.Name, err)
	}

	return kit.Later(r.write(ctx, want.Name, want))
}

// parameter returns the parameter that the fence of the ring needs; nil if it needs none. Which Pods run the shards
// follows from the Leases.
func (r *Fences) parameter(ctx context.Context, ring *v1alpha1.ClusterRing) (*v1alpha1.PolicyParameter, error) {
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

// SetupWithManager adds a controller to the manager that calls the reconciler, while this replica leads, for every ring
// whose fence may need another parameter, whenever its Leases change otherwise than by a renewal, and for every
// parameter that changes.
func (r *Fences) SetupWithManager(mgr manager.Manager) error {
	err := builder.ControllerManagedBy(mgr).
		Named("fences").
		For(&v1alpha1.ClusterRing{}, builder.WithPredicates(clusterring.SpecChanged)).
		Watches(&v1alpha1.ClusterRing{}, clusterring.Rivals(r.Client)).
		Watches(&coordinationv1.Lease{}, handler.EnqueueRequestsFromMapFunc(clusterring.ByLabel),
			builder.WithPredicates(ringstatus.ShardChanged)).
		Watches(&v1alpha1.PolicyParameter{}, handler.EnqueueRequestsFromMapFunc(clusterring.ByLabel)).
		WithOptions(controller.Options{RateLimiter: kit.RateLimiter[reconcile.Request]()}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add the controller of the fences' parameters: %w", err)
	}

	return nil
}
