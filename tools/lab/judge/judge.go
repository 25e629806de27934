// Package judge judges what the example's shards and the query service have made of the objects of a ring.
package judge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	diagnosticsv1alpha1 "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/checksum"
	"github.com/clusterring/clusterring/tools/example/website"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// Unrendered returns the Websites on which the example's shards still have work: their ConfigMap does not contain their
// page or its checksum, or their status is not up to date.
func Unrendered(ctx context.Context, c client.Client, in ...client.ListOption) ([]client.ObjectKey, error) {
	var (
		sites      examplev1alpha1.WebsiteList
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
		if site.Status.ObservedGeneration != site.Generation || !maps.Equal(pages[key], website.Render(site.Spec)) {
			left = append(left, key)
		}
	}

	return left, nil
}

// Locate returns the question where an object is, which has an owner unless that is zero. An empty ring means all
// rings.
func Locate(ring string, v, owner check.Version) *diagnosticsv1alpha1.LocateRequest {
	request := &diagnosticsv1alpha1.LocateRequest{
		Ring: ring,
		Object: &diagnosticsv1alpha1.ObjectReference{
			Group:     record.Resource(v.Kind).Group,
			Type:      &diagnosticsv1alpha1.ObjectReference_Resource{Resource: strings.ToLower(v.Kind) + "s"},
			Namespace: v.Namespace, Name: v.Name,
		},
		NextShards: ptr.To[int32](0),
	}
	if owner.UID != "" {
		request.Owner = &diagnosticsv1alpha1.OwnerReference{
			Group: record.Resource(owner.Kind).Group, Name: owner.Name,
			Type: &diagnosticsv1alpha1.OwnerReference_Kind{Kind: owner.Kind},
		}
	}

	return request
}
