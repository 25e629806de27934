// Package parameters tells the admission policies what they must know of rings. It keeps a PolicyParameter for the fence of each ring, and one
// for the policy about Leases of shards.
package parameters

import (
	"context"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// Writer writes parameters. The field is required.
type Writer struct {
	// Client writes, and reads ClusterRings and PolicyParameters from a cache.
	Client client.Client
}

// write creates or restores a parameter. It removes whatever others have added to the data, which a policy would believe.
func (w Writer) write(ctx context.Context, want *v1alpha1.PolicyParameter) error {
	have := &v1alpha1.PolicyParameter{ObjectMeta: metav1.ObjectMeta{Name: want.Name}}

	result, err := controllerutil.CreateOrUpdate(ctx, w.Client, have, func() error {
		have.OwnerReferences, have.Data = want.OwnerReferences, want.Data

		if have.Labels == nil {
			have.Labels = map[string]string{}
		}

		maps.Copy(have.Labels, want.Labels)

		return nil
	})
	if err != nil {
		return fmt.Errorf("write PolicyParameter %s: %w", want.Name, err)
	}

	if result != controllerutil.OperationResultNone {
		log.FromContext(ctx).Info("Parameter written", "parameter", want.Name, "result", result)
	}

	return nil
}

// remove deletes the parameter of the given name, if there is one.
func (w Writer) remove(ctx context.Context, name string) error {
	have := &v1alpha1.PolicyParameter{}
	key := client.ObjectKey{Name: name}

	err := w.Client.Get(ctx, key, have)
	if err == nil {
		err = w.Client.Delete(ctx, have, client.Preconditions{UID: &have.UID})
	}

	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("delete PolicyParameter %s: %w", name, err)
	}

	log.FromContext(ctx).Info("Parameter removed", "parameter", name)

	return nil
}
