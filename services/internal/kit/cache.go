package kit

import (
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
)

// newScheme returns a scheme that knows Kubernetes' own types and ClusterRings. Every manager gets its own.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register Kubernetes types: %w", err)
	}

	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register ClusterRing types: %w", err)
	}

	return scheme, nil
}

// cacheOptions keeps memory small: of all the Leases of a cluster (one per node, one per controller, renewed every few
// seconds) only those of shards are watched, and of these only what is used is kept. Nothing keeps managedFields, which nobody
// reads from a cache.
func cacheOptions() (cache.Options, error) {
	ofRing, err := labels.NewRequirement(v1alpha1.LabelClusterRing, selection.Exists, nil)
	if err != nil {
		return cache.Options{}, fmt.Errorf("select the Leases of shards: %w", err)
	}

	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&coordinationv1.Lease{}: {Label: labels.NewSelector().Add(*ofRing), Transform: slimLease},
		},
	}, nil
}

// slimLease is [lease.Slim] for a cache.
func slimLease(obj any) (any, error) {
	if l, ok := obj.(*coordinationv1.Lease); ok {
		return lease.Slim(l), nil
	}

	return obj, nil
}
