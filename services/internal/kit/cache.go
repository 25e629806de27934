package kit

import (
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/leases"
)

// newScheme returns a scheme that knows Kubernetes' own types and ClusterRings. Every manager gets its own.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))

	return scheme
}

// cacheOptions keeps memory small: of all the Leases of a cluster (one per node, one per controller, renewed every few
// seconds) only those of shards are watched, and of these only what is used is kept. Nothing keeps managedFields, which
// nobody reads from a cache.
//
// Rings without a namespace selector get the given one, which may be nil.
func cacheOptions(namespaces *metav1.LabelSelector) cache.Options {
	ofShards := OfRing()
	ofShards.Transform = leases.Slim

	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&coordinationv1.Lease{}: ofShards, &v1alpha1.ClusterRing{}: {Transform: selectNamespaces(namespaces)},
		},
		NewInformer: newInformer,
	}
}

// OfRing selects what a cache holds of a kind: only objects with the label of a ring.
func OfRing() cache.ByObject {
	ofRing, _ := labels.Parse(contract.LabelClusterRing) // fails for invalid labels only

	return cache.ByObject{Label: ofRing}
}

// newInformer lists Leases in bounded pages.
func newInformer(
	source toolscache.ListerWatcher, example runtime.Object, resync time.Duration, indexers toolscache.Indexers,
) toolscache.SharedIndexInformer {
	if _, ok := example.(*coordinationv1.Lease); ok {
		source = leases.Source(source)
	}

	return toolscache.NewSharedIndexInformer(source, example, resync, indexers)
}

// parseNamespaceSelector returns the selector in --default-namespace-selector; nil if there is none.
func parseNamespaceSelector(text string) (*metav1.LabelSelector, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // none is a valid value
	}

	selector, err := metav1.ParseToLabelSelector(text)
	if err == nil {
		_, err = metav1.LabelSelectorAsSelector(selector)
	}

	if err != nil {
		return nil, fmt.Errorf("--default-namespace-selector %q is no label selector, such as sharding=enabled or "+
			"kubernetes.io/metadata.name notin (a,b): %w", text, err)
	}

	return selector, nil
}

// selectNamespaces returns the transformation of what a cache holds of rings: those without a selector get the given
// one, which may be nil. All that a service knows of a ring comes from the cache, and no service writes the spec.
func selectNamespaces(selector *metav1.LabelSelector) toolscache.TransformFunc {
	return func(obj any) (any, error) {
		ring, ok := obj.(*v1alpha1.ClusterRing)
		if !ok {
			return obj, nil
		}

		ring.ManagedFields = nil
		if ring.Spec.NamespaceSelector == nil {
			ring.Spec.NamespaceSelector = selector.DeepCopy()
		}

		return ring, nil
	}
}
