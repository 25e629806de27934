package objects

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// Server is an API server, as far as the metadata of objects goes. Its errors are those of k8s.io/apimachinery/pkg/api/errors. It
// may be used by several goroutines.
type Server interface {
	// Enter waits until one more object may be read and written; leave ends that. It may take long: what is good for a short time only, as
	// a look at a Lease is, is asked after it. The error is the context's.
	Enter(ctx context.Context) (leave func(), err error)
	// Get reads one object from the API server's storage.
	Get(ctx context.Context, id ID) (*metav1.PartialObjectMetadata, error)
	// List lists objects in one namespace, or with "" in all.
	List(ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions) (*metav1.PartialObjectMetadataList, error)
	// Watch watches objects in one namespace, or with "" in all.
	Watch(ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions) (watch.Interface, error)
	// Patch sends a JSON merge patch and returns the object as it is then.
	Patch(ctx context.Context, id ID, body []byte) (*metav1.PartialObjectMetadata, error)
}
