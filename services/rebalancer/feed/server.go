package feed

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// Server is an API server, limited to the metadata of objects. Its errors are those of
// k8s.io/apimachinery/pkg/api/errors. It is safe for concurrent use.
type Server interface {
	// Enter waits until one more object may be read and written; leave ends that. The wait may be long. Facts that are
	// valid only for a short time, such as the state of a Lease, must be read after it. The error is the error of the
	// context.
	Enter(ctx context.Context) (leave func(), err error)
	// Get reads one object from the API server's storage.
	Get(ctx context.Context, id ID) (*metav1.PartialObjectMetadata, error)
	// List lists objects in one namespace; "" means all namespaces.
	List(
		ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
	) (*metav1.PartialObjectMetadataList, error)
	// Watch watches objects in one namespace; "" means all namespaces.
	Watch(
		ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
	) (watch.Interface, error)
	// Patch sends a JSON merge patch and returns the patched object. With a manager, it applies body instead: the whole
	// configuration of the manager, which takes its fields from other managers.
	Patch(ctx context.Context, id ID, body []byte, manager string) (*metav1.PartialObjectMetadata, error)
}

// Bounds limit the requests of all rings of a service together. Both are positive.
type Bounds struct {
	// PerSecond is the number of requests per second. Bursts may be twice as large.
	PerSecond int
	// AtOnce is the number of single objects that are read and written at a time. The queue is first come, first
	// served, and each ring has at most one place in it, so rings get equal shares.
	AtOnce int
}

// api is the API server behind a configuration.
type api struct {
	meta metadata.Interface
	// turns limits the number of single objects in progress. It excludes lists and watches, which are few and long.
	turns *semaphore.Weighted
}

// Connect returns the API server of the configuration. It uses the connections of c. The bounds apply to all users of
// the result together.
func Connect(cfg *rest.Config, c *http.Client, b Bounds) (Server, error) {
	bounded := metadata.ConfigFor(cfg)
	bounded.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(float32(b.PerSecond), 2*b.PerSecond)

	inTime := *c
	inTime.Transport = timeouts{cmp.Or(c.Transport, http.DefaultTransport)}

	meta, err := metadata.NewForConfigAndClient(bounded, &inTime)
	if err != nil {
		return nil, fmt.Errorf("create a client for metadata: %w", err)
	}

	return &api{meta: meta, turns: semaphore.NewWeighted(int64(b.AtOnce))}, nil
}

// within is the key of a time limit in a context.
type within struct{}

// Within returns a context for writes for which the API server gives up after d, which is positive. It then returns an
// error, which shows what it was waiting for. Otherwise, a webhook may take as long as it is registered with.
func Within(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, within{}, d)
}

// timeouts asks the API server to give up: see [Within].
type timeouts struct{ http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (t timeouts) RoundTrip(r *http.Request) (*http.Response, error) {
	if d, ok := r.Context().Value(within{}).(time.Duration); ok {
		r = r.Clone(r.Context())
		query := r.URL.Query()
		query.Set("timeout", d.String())
		r.URL.RawQuery = query.Encode()
	}

	return t.RoundTripper.RoundTrip(r) //nolint:wrapcheck // as it is
}

func (a *api) Enter(ctx context.Context) (leave func(), err error) {
	if err := a.turns.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("wait for a turn to read and write an object: %w", err)
	}

	return func() { a.turns.Release(1) }, nil
}

//nolint:wrapcheck // Client adds the context
func (a *api) Get(ctx context.Context, id ID) (*metav1.PartialObjectMetadata, error) {
	return a.meta.Resource(id.GVR).Namespace(id.Namespace).Get(ctx, id.Name, metav1.GetOptions{})
}

//nolint:wrapcheck // as above
func (a *api) List(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
) (*metav1.PartialObjectMetadataList, error) {
	return a.meta.Resource(gvr).Namespace(namespace).List(ctx, opts)
}

//nolint:wrapcheck // as above
func (a *api) Watch(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
) (watch.Interface, error) {
	return a.meta.Resource(gvr).Namespace(namespace).Watch(ctx, opts)
}

//nolint:wrapcheck // as above
func (a *api) Patch(ctx context.Context, id ID, body []byte, manager string) (*metav1.PartialObjectMetadata, error) {
	as, opts := types.MergePatchType, metav1.PatchOptions{}
	if manager != "" {
		as, opts = types.ApplyPatchType, metav1.PatchOptions{FieldManager: manager, Force: new(true)}
	}

	return a.meta.Resource(id.GVR).Namespace(id.Namespace).Patch(ctx, id.Name, as, body, opts)
}
