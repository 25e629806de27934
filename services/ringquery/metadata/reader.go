// Package metadata reads the metadata of objects from the API server, and classifies errors.
//
// Each call is one request for the latest state. The package caches and watches nothing, so that the service costs nothing without
// queries, and answers are up to date.
package metadata

import (
	"context"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/services/internal/ancestry"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// namespaces is the resource of namespaces.
var namespaces = corev1.SchemeGroupVersion.WithResource("namespaces")

// Reader reads metadata with the rights of one client. It is safe for concurrent use; create it with [NewReader].
type Reader struct {
	client metadata.Interface
}

// NewReader returns a reader that uses the given configuration and client. It fails if the configuration is not valid.
func NewReader(config *rest.Config, client *http.Client) (*Reader, error) {
	c, err := metadata.NewForConfigAndClient(metadata.ConfigFor(config), client)
	if err != nil {
		return nil, fmt.Errorf("make a client for metadata: %w", err)
	}

	return &Reader{client: c}, nil
}

// Get reads one object, with its managed fields. The namespace of a cluster-scoped object is empty. It fails with
// [ErrNotFound], [ErrNotServed], [ErrForbidden], [ErrUnavailable] or the error of the context.
func (r *Reader) Get(ctx context.Context, gvr schema.GroupVersionResource, id types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
	object, err := r.client.Resource(gvr).Namespace(id.Namespace).Get(ctx, id.Name, metav1.GetOptions{})
	if err != nil {
		return nil, classify(ctx, fmt.Sprintf("read %s %s", gvr.GroupResource(), name(id)), err)
	}

	return object, nil
}

// Query names the objects to list.
type Query struct {
	// ListOptions are those of the API server. Without a limit, the page contains all objects.
	metav1.ListOptions

	// GVR is their resource.
	GVR schema.GroupVersionResource
	// Namespace limits the list. Empty: all namespaces.
	Namespace string
}

// List reads one page of objects with their managed fields, all as they were at one time, in the order of namespaces, then names.
// It fails with [ErrExpired] if the list began too long ago to continue (begin again), and with [ErrInvalid], [ErrNotServed],
// [ErrForbidden], [ErrUnavailable] or the error of the context.
func (r *Reader) List(ctx context.Context, q Query) (*metav1.PartialObjectMetadataList, error) {
	list, err := r.client.Resource(q.GVR).Namespace(q.Namespace).List(ctx, q.ListOptions)
	if err != nil {
		return nil, classify(ctx, "list "+q.GVR.GroupResource().String(), err)
	}

	return list, nil
}

// NamespaceLabels returns the labels of a namespace. It fails as [Reader.Get] does.
func (r *Reader) NamespaceLabels(ctx context.Context, namespace string) (map[string]string, error) {
	object, err := r.Get(ctx, namespaces, types.NamespacedName{Name: namespace})
	if err != nil {
		return nil, err
	}

	return object.Labels, nil
}

// between is the maximum number of cached intermediate objects per answer.
const between = 1000

// Ancestors returns a finder of the objects that others follow. Its cache is for one answer.
func (r *Reader) Ancestors() resources.Ancestors {
	return ancestry.New(ancestry.Options{Read: r.Get, Size: between, Remember: time.Hour, Clock: clock.RealClock{}})
}

// name formats a name for people.
func name(id types.NamespacedName) string {
	if id.Namespace == "" {
		return id.Name
	}

	return id.Namespace + "/" + id.Name
}
