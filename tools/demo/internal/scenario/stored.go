package scenario

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/record"
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
	return record.Resource(kind).GroupVersion().WithKind(kind)
}
