// Package objects creates, patches, deletes, and lists objects in bulk. On this machine it costs little more than HTTP:
// responses contain only metadata, and only the concurrency limits the rate.
package objects

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// TurnLabel is the label that measurements change to cause a write without a consequence. The rebalancer may write it:
// to its admission policy it is a drain label, but of no ring.
const TurnLabel = contract.LabelDrainPrefix + "load-turn"

// Client sends requests to an API server over a connection of its own. Create it with [New]; it is safe for concurrent
// use.
type Client struct {
	// Metadata reads and writes metadata.
	Metadata metadata.Interface

	http *http.Client
	rest rest.Interface
}

// New returns a client without a rate limit. Call Close when it is no longer needed.
func New(config *rest.Config) (*Client, error) {
	own := metadata.ConfigFor(config)
	own.QPS, own.WarningHandler = -1, rest.NoWarnings{}
	own.GroupVersion = &schema.GroupVersion{} // any
	own.Proxy = http.ProxyFromEnvironment     // with a function, client-go does not share the connection

	var (
		c   Client
		err error
	)

	if c.http, err = rest.HTTPClientFor(own); err != nil {
		return nil, fmt.Errorf("prepare a connection to the API server: %w", err)
	}

	if c.Metadata, err = metadata.NewForConfigAndClient(own, c.http); err != nil {
		return nil, fmt.Errorf("create a metadata client: %w", err)
	}

	if c.rest, err = rest.RESTClientForConfigAndClient(own, c.http); err != nil {
		return nil, fmt.Errorf("create a client: %w", err)
	}

	return &c, nil
}

// Close closes idle connections.
func (c *Client) Close() { utilnet.CloseIdleConnectionsFor(c.http.Transport) }

// Kind is a kind of object.
type Kind struct {
	schema.GroupVersionResource

	Kind string
}

// The kinds that measurements create.
var (
	ConfigMaps = Kind{schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "ConfigMap"}
	Websites   = Kind{schema.GroupVersionResource{
		Group: "example.clusterring.dev", Version: "v1alpha1", Resource: "websites",
	}, "Website"}
	Pods   = Kind{schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "Pod"}
	Leases = Kind{
		schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, "Lease",
	}
)

// Ref refers to an object, or to its subresource.
type Ref struct {
	Kind                         Kind
	Namespace, Name, Subresource string
}

// Batch names objects: Prefix-0 to Prefix-(Count-1).
type Batch struct {
	Kind              Kind
	Namespace, Prefix string
	Count             int
	// Owner is the controller of all objects; nil means none.
	Owner *metav1.OwnerReference
}

// Name returns the name of an object of the batch.
func (b Batch) Name(i int) string { return b.Prefix + "-" + strconv.Itoa(i) }

// Ref refers to an object of the batch.
func (b Batch) Ref(i int) Ref { return Ref{Kind: b.Kind, Namespace: b.Namespace, Name: b.Name(i)} }

// Object returns an object of the batch, for JSON.
func (b Batch) Object(i int) map[string]any {
	meta := map[string]any{"name": b.Name(i), "namespace": b.Namespace}
	if b.Owner != nil {
		meta["ownerReferences"] = []*metav1.OwnerReference{b.Owner}
	}

	object := map[string]any{"apiVersion": b.Kind.GroupVersion().String(), "kind": b.Kind.Kind, "metadata": meta}
	switch b.Kind {
	case ConfigMaps:
		object["data"] = map[string]string{"made": "to be measured"}
	case Websites:
		object["spec"] = map[string]string{"title": "Made to be measured"}
	}

	return object
}

// Concurrency is the number of requests that measurements send at a time: as many as the rebalancer sends by default.
const Concurrency = 16

// pageSize is the number of objects per list request.
const pageSize = 5000

// Create creates the objects of a batch.
func (c *Client) Create(ctx context.Context, b Batch) error {
	return Each(ctx, b.Count, Concurrency, func(ctx context.Context, i int) error {
		_, err := c.Post(ctx, b.Ref(i), b.Object(i))
		return err
	})
}

// Post creates one object, which is encoded as JSON, and returns its metadata. With [metav1.DryRunAll] it only calls
// admission webhooks.
func (c *Client) Post(
	ctx context.Context, r Ref, object any, dryRun ...string,
) (*metav1.PartialObjectMetadata, error) {
	body, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", r.Kind.Kind, r.Name, err)
	}

	root := []string{"apis", r.Kind.Group, r.Kind.Version}
	if r.Kind.Group == "" {
		root = []string{"api", r.Kind.Version}
	}

	made := &metav1.PartialObjectMetadata{}

	err = c.rest.Post().AbsPath(root...).Namespace(r.Namespace).Resource(r.Kind.Resource).
		VersionedParams(&metav1.CreateOptions{DryRun: dryRun}, metav1.ParameterCodec).
		SetHeader("Accept", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1").
		SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Into(made)
	if err != nil {
		return nil, fmt.Errorf("create %s %s: %w", r.Kind.Kind, r.Name, err)
	}

	return made, nil
}

// Patch sends the same JSON merge patch for each object of a batch.
func (c *Client) Patch(ctx context.Context, b Batch, patch any) error {
	return Each(ctx, b.Count, Concurrency, func(ctx context.Context, i int) error {
		return c.MergePatch(ctx, b.Ref(i), patch)
	})
}

// MergePatch sends a JSON merge patch of an object or its subresource.
func (c *Client) MergePatch(ctx context.Context, r Ref, patch any) error {
	_, err := c.Change(ctx, r, patch)

	return err
}

// Change is MergePatch, and returns the metadata of the object after it.
func (c *Client) Change(ctx context.Context, r Ref, patch any) (*metav1.PartialObjectMetadata, error) {
	body, err := json.Marshal(patch)

	var changed *metav1.PartialObjectMetadata
	if err == nil {
		changed, err = c.of(r.Kind, r.Namespace).Patch(ctx, r.Name, types.MergePatchType, body, metav1.PatchOptions{},
			r.Subresource)
	}

	if err != nil {
		return nil, fmt.Errorf("patch %s %s: %w", r.Kind.Kind, r.Name, err)
	}

	return changed, nil
}

// Delete deletes the objects of a batch. It ignores objects that are already gone.
func (c *Client) Delete(ctx context.Context, b Batch) error {
	return Each(ctx, b.Count, Concurrency, func(ctx context.Context, i int) error {
		return c.Remove(ctx, b.Ref(i))
	})
}

// Remove deletes an object. It ignores an object that is already gone.
func (c *Client) Remove(ctx context.Context, r Ref) error {
	err := c.of(r.Kind, r.Namespace).Delete(ctx, r.Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s %s: %w", r.Kind.Kind, r.Name, err)
	}

	return nil
}

// Selection selects existing objects.
type Selection struct {
	Kind Kind
	// Namespace is empty for all namespaces.
	Namespace string
	// Labels is a label selector; empty selects all.
	Labels string
}

// DeleteAll deletes the selected objects.
func (c *Client) DeleteAll(ctx context.Context, s Selection) error {
	list, err := c.List(ctx, s)
	if err != nil {
		return err
	}

	return Each(ctx, len(list), Concurrency, func(ctx context.Context, i int) error {
		return c.Remove(ctx, Ref{Kind: s.Kind, Namespace: list[i].Namespace, Name: list[i].Name})
	})
}

// List returns the metadata of the selected objects. It lists page by page.
func (c *Client) List(ctx context.Context, s Selection) ([]metav1.PartialObjectMetadata, error) {
	var list []metav1.PartialObjectMetadata

	options := metav1.ListOptions{LabelSelector: s.Labels, Limit: pageSize}
	for {
		page, err := c.of(s.Kind, s.Namespace).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list %s in %q: %w", s.Kind.Resource, s.Namespace, err)
		}

		list = append(list, page.Items...)
		if options.Continue = page.Continue; options.Continue == "" {
			return list, nil
		}
	}
}

// Each calls do with 0 to n-1, with at most the given concurrency. After the first error, it starts no further calls,
// and returns the error.
func Each(ctx context.Context, n, concurrency int, do func(ctx context.Context, i int) error) error {
	group, each := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)

	for i := 0; i < n && each.Err() == nil; i++ {
		group.Go(func() error { return do(each, i) })
	}

	return cmp.Or(group.Wait(), context.Cause(ctx)) //nolint:wrapcheck // the caller's own error
}

const (
	// patience limits waits for the services. It is long, because the machine is busy.
	patience = 5 * time.Minute
	// look is the time between requests, glance that between looks at what a watch has seen.
	look, glance = 100 * time.Millisecond, 5 * time.Millisecond
)

// Until waits until the condition holds. The text what describes it in the error.
func Until(ctx context.Context, what string, condition func(context.Context) (bool, error)) error {
	return until(ctx, look, what, condition)
}

func until(
	ctx context.Context, every time.Duration, what string, condition func(context.Context) (bool, error),
) error {
	err := wait.PollUntilContextTimeout(ctx, every, patience, true, condition)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}

	if err != nil {
		return fmt.Errorf("wait until %s: %w", what, err)
	}

	return nil
}

// Watch follows objects until Stop. Create it with [Client.Watch].
type Watch struct {
	cancel context.CancelFunc
	wait   func()

	mu  sync.Mutex
	err error
}

// Watch calls see for each selected object, as an added one, and then for each change, one call at a time. A broken
// watch resumes where it has ended. Call Stop on the result.
func (c *Client) Watch(
	ctx context.Context, s Selection, see func(event watch.EventType, o *metav1.PartialObjectMetadata),
) (w *Watch, err error) {
	w = &Watch{}
	ctx, w.cancel = context.WithCancel(ctx)

	w.wait, err = record.Follow(ctx, c.of(s.Kind, s.Namespace), s.Labels, record.Observer[*metav1.PartialObjectMetadata]{
		See: func(event watch.EventType, o *metav1.PartialObjectMetadata) {
			w.mu.Lock()
			defer w.mu.Unlock()

			see(event, o)
		},
		Fail: func(err error) {
			w.mu.Lock()
			defer w.mu.Unlock()

			w.err = fmt.Errorf("watch %s: %w", s.Kind.Resource, err)
		},
	})
	if err != nil {
		w.cancel()
		return nil, fmt.Errorf("watch %s: %w", s.Kind.Resource, err)
	}

	return w, nil
}

func (c *Client) of(k Kind, namespace string) metadata.ResourceInterface {
	return c.Metadata.Resource(k.GroupVersionResource).Namespace(namespace)
}

// Until waits until the condition holds, which is never called at the same time as see. The text what describes it in
// the error.
func (w *Watch) Until(ctx context.Context, what string, condition func() bool) error {
	return until(ctx, glance, what, func(context.Context) (bool, error) {
		w.mu.Lock()
		defer w.mu.Unlock()

		return condition(), w.err
	})
}

// Stop ends the watch, and returns the error that has ended it before, if any. After that, nothing is seen.
func (w *Watch) Stop() error {
	w.cancel()
	w.wait()

	return w.err
}
