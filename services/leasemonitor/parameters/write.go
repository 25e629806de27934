// Package parameters tells the admission policies what they must know of rings. It keeps a PolicyParameter for the fence of each ring, and one,
// or a few, of all rings for the policies about Leases of shards and about webhooks.
package parameters

import (
	"context"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/kit"
)

// Writer writes parameters. The fields are required.
type Writer struct {
	// Client writes, and reads ClusterRings and PolicyParameters from a cache.
	Client client.Client
	// Restores paces what is restored.
	Restores *kit.Restores
}

// write creates or restores a parameter. It removes whatever others have added to the data, which a policy would believe. Others are recognized by what
// was written before by the same key.
func (w Writer) write(ctx context.Context, key string, want *v1alpha1.PolicyParameter) error {
	have := &v1alpha1.PolicyParameter{}

	err := w.Client.Get(ctx, client.ObjectKeyFromObject(want), have)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read PolicyParameter %s: %w", want.Name, err)
	}

	create := err != nil

	next := have.DeepCopy()
	next.Name, next.OwnerReferences, next.Data = want.Name, want.OwnerReferences, want.Data

	if next.Labels == nil {
		next.Labels = map[string]string{}
	}

	maps.Copy(next.Labels, want.Labels)

	if !create && equality.Semantic.DeepEqual(have, next) {
		return nil
	}

	return w.Restores.Write(key, want, "somebody keeps changing PolicyParameter "+want.Name, func() error { // the assigner reports it
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

// remove deletes the parameter of the ring's fence, if there is one. A ring with the same suffix may have one of this name.
func (w Writer) remove(ctx context.Context, ring string) error {
	have := &v1alpha1.PolicyParameter{}
	name := contract.FenceName(ring)

	err := w.Client.Get(ctx, client.ObjectKey{Name: name}, have)
	if of, labelled := have.Labels[contract.LabelClusterRing]; labelled && of != ring {
		return nil
	}

	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("read PolicyParameter %s: %w", name, err)
	}

	return w.delete(ctx, have)
}

// delete deletes a parameter that may be gone.
func (w Writer) delete(ctx context.Context, have *v1alpha1.PolicyParameter) error {
	err := w.Client.Delete(ctx, have, client.Preconditions{UID: &have.UID})

	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("delete PolicyParameter %s: %w", have.Name, err)
	}

	log.FromContext(ctx).Info("Parameter removed", "parameter", have.Name)

	return nil
}
