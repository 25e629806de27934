package website

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/checksum"
)

// Unrendered returns the Websites on which shards still have work: their ConfigMap does not contain their
// page or its checksum, or their status is not up to date.
func Unrendered(ctx context.Context, c client.Client, in ...client.ListOption) ([]client.ObjectKey, error) {
	var (
		sites      v1alpha1.WebsiteList
		configMaps corev1.ConfigMapList
	)
	if err := errors.Join(c.List(ctx, &sites, in...), c.List(ctx, &configMaps, in...)); err != nil {
		return nil, fmt.Errorf("list Websites and ConfigMaps: %w", err)
	}

	pages := map[client.ObjectKey]map[string]string{}

	for i := range configMaps.Items {
		page := &configMaps.Items[i]

		sum, err := checksum.Of(page.Data)
		if err != nil {
			return nil, err
		}

		if page.Annotations[checksum.Annotation] == sum {
			pages[client.ObjectKeyFromObject(page)] = page.Data
		}
	}

	var left []client.ObjectKey

	for i := range sites.Items {
		site := &sites.Items[i]

		key := client.ObjectKeyFromObject(site)
		if site.Status.ObservedGeneration != site.Generation || !maps.Equal(pages[key], Render(site.Spec)) {
			left = append(left, key)
		}
	}

	return left, nil
}
