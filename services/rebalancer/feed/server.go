package feed

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// Server is an API server, limited to the metadata of objects. Its errors are those of k8s.io/apimachinery/pkg/api/errors. It
// is safe for concurrent use.
type Server interface {
	// Enter waits until one more object may be read and written; leave ends that. The wait may be long. Facts that are valid
	// only for a short time, such as the state of a Lease, must be read after it. The error is the error of the context.
	Enter(ctx context.Context) (leave func(), err error)
	// Get reads one object from the API server's storage.
	Get(ctx context.Context, id ID) (*metav1.PartialObjectMetadata, error)
	// List lists objects in one namespace; "" means all namespaces.
	List(ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions) (*metav1.PartialObjectMetadataList, error)
	// Watch watches objects in one namespace; "" means all namespaces.
	Watch(ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions) (watch.Interface, error)
	// Patch sends a JSON merge patch and returns the patched object.
	Patch(ctx context.Context, id ID, body []byte) (*metav1.PartialObjectMetadata, error)
	// Apply sends the whole configuration of a manager, which takes its fields from other managers, and returns the object.
	Apply(ctx context.Context, id ID, body []byte, manager string) (*metav1.PartialObjectMetadata, error)
}
