package objects

import (
	"context"
	"fmt"
	"net/http"

	"golang.org/x/sync/semaphore"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// Bounds are what all rings of a service together may ask of the API server. Both are positive.
type Bounds struct {
	// PerSecond is the number of requests per second; twice as many may come at once.
	PerSecond int
	// AtOnce is the number of single objects that are read and written at a time. Who waits goes first come, first served: a ring with
	// much to do has as many in the queue as it has workers, so that rings get equal shares.
	AtOnce int
}

// api is the API server behind a configuration.
type api struct {
	meta metadata.Interface
	// turns bounds the single objects dealt with. Lists and watches are few, and last.
	turns *semaphore.Weighted
}

// Connect returns the API server of the configuration, by the connections of c, within bounds that hold for all who use it.
func Connect(cfg *rest.Config, c *http.Client, b Bounds) (Server, error) {
	bounded := metadata.ConfigFor(cfg)
	bounded.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(float32(b.PerSecond), 2*b.PerSecond)

	meta, err := metadata.NewForConfigAndClient(bounded, c)
	if err != nil {
		return nil, fmt.Errorf("create a client for metadata: %w", err)
	}

	return &api{meta: meta, turns: semaphore.NewWeighted(int64(b.AtOnce))}, nil
}

//nolint:wrapcheck // Client says what was asked
func (a *api) Enter(ctx context.Context) (leave func(), err error) {
	if err := a.turns.Acquire(ctx, 1); err != nil {
		return nil, err
	}

	return func() { a.turns.Release(1) }, nil
}

//nolint:wrapcheck // as above
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
	w, err := a.meta.Resource(gvr).Namespace(namespace).Watch(ctx, opts)
	if err != nil {
		return nil, err
	}

	return drained{w}, nil
}

// drained is a watch whose end does not leave a goroutine behind: the metadata client's hands every event on through a
// channel without a buffer, and would wait for ever for somebody to take the last one.
type drained struct{ watch.Interface }

func (d drained) Stop() {
	d.Interface.Stop()

	for range d.ResultChan() { // The events are not wanted any more.
	}
}

//nolint:wrapcheck // as above
func (a *api) Patch(ctx context.Context, id ID, body []byte) (*metav1.PartialObjectMetadata, error) {
	return a.meta.Resource(id.GVR).Namespace(id.Namespace).Patch(ctx, id.Name, types.MergePatchType, body, metav1.PatchOptions{})
}
