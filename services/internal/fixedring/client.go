package fixedring

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// errUnsupported refuses writes that no service does.
var errUnsupported = errors.New("a ring in the program can only be patched, in its annotations and finalizers, and its status applied")

// Mapper returns a mapper that knows ClusterRings, whether the given one does or not.
func Mapper(served meta.RESTMapper) meta.RESTMapper {
	own := meta.NewDefaultRESTMapper([]schema.GroupVersion{v1alpha1.GroupVersion})
	own.Add(v1alpha1.GroupVersion.WithKind("ClusterRing"), meta.RESTScopeRoot)

	return meta.FirstHitRESTMapper{MultiRESTMapper: meta.MultiRESTMapper{own, served}}
}

// Reader returns a reader of the store for rings, and of the given one for everything else.
func (s *Store) Reader(other client.Reader) client.Reader { return reader{other, s} }

type reader struct {
	client.Reader
	store *Store
}

// Get implements [client.Reader].
func (r reader) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if ring, ok := obj.(*v1alpha1.ClusterRing); ok {
		return r.store.get(key.Name, ring)
	}

	return r.Reader.Get(ctx, key, obj, opts...) //nolint:wrapcheck // the reader's own answer
}

// Client returns a client that writes rings into the store, and does everything else with the given one. That reads rings from a cache, which
// follows the store.
func (s *Store) Client(other client.Client) client.Client { return writer{other, s} }

type writer struct {
	client.Client
	store *Store
}

// Patch implements [client.Client]. Whatever the patch is, the annotations and finalizers of a ring become those of obj.
func (w writer) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if ring, ok := obj.(*v1alpha1.ClusterRing); ok {
		return w.store.setMeta(ring)
	}

	return w.Client.Patch(ctx, obj, patch, opts...) //nolint:wrapcheck // the client's own answer
}

// Status implements [client.Client].
func (w writer) Status() client.SubResourceWriter { return statusWriter{w.Client.Status(), w.store} }

type statusWriter struct {
	client.SubResourceWriter
	store *Store
}

// Apply implements [client.SubResourceWriter].
func (w statusWriter) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
	ring, ok := obj.(interface {
		GetName() string
		GroupVersionKind() schema.GroupVersionKind
		UnstructuredContent() map[string]any
	})
	if !ok || ring.GroupVersionKind().GroupKind() != v1alpha1.GroupVersion.WithKind("ClusterRing").GroupKind() {
		return w.SubResourceWriter.Apply(ctx, obj, opts...) //nolint:wrapcheck // the client's own answer
	}

	var o client.SubResourceApplyOptions
	for _, opt := range opts {
		opt.ApplyToSubResourceApply(&o)
	}

	part, ok := ring.UnstructuredContent()["status"].(map[string]any)
	if !ok || o.FieldManager == "" {
		return fmt.Errorf("ring %s: %w", ring.GetName(), errUnsupported)
	}

	return w.store.setStatus(ring.GetName(), o.FieldManager, runtime.DeepCopyJSON(part))
}
