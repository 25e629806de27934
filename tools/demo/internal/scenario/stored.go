package scenario

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/check"
)

// kinds are the kinds of sharded objects in deploy/example.
var kinds = []string{check.Website, check.ConfigMap, check.Fleet, check.Ship}

// stored reads the metadata of all objects of the sharded kinds from the API server, by kind, namespace, and name.
func (s *Story) stored(ctx context.Context, options ...client.ListOption) (map[string]metav1.PartialObjectMetadata, error) {
	all := map[string]metav1.PartialObjectMetadata{}

	for _, kind := range kinds {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(gvk(kind))

		if err := s.client.List(ctx, list, options...); err != nil {
			return nil, fmt.Errorf("list %ss: %w", kind, err)
		}

		for i := range list.Items {
			all[kind+" "+client.ObjectKeyFromObject(&list.Items[i]).String()] = list.Items[i]
		}
	}

	return all, nil
}

// gvk returns the group, version, and kind of one of the kinds.
func gvk(kind string) schema.GroupVersionKind {
	if kind == check.ConfigMap {
		return corev1.SchemeGroupVersion.WithKind(kind)
	}

	return examplev1alpha1.SchemeGroupVersion.WithKind(kind)
}
