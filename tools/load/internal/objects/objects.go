// Package objects creates, patches, deletes, and counts objects in bulk. On this machine it costs little more than
// HTTP: bodies are bytes, responses are not decoded, and only the concurrency limits the rate.
package objects

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// TurnLabel is the label that measurements change to cause a write without a consequence. The rebalancer may write it:
// to its admission policy it is a drain label, but of no ring.
const TurnLabel = contract.LabelDrainPrefix + "load-turn"

const (
	jsonType = "application/json"
	// metadataOnly requests only the metadata of an object.
	metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	// maxAnswer limits the size of an error text, in bytes.
	maxAnswer = 64 << 10
)

// Client sends requests to an API server over several HTTP/2 connections. Create it with [New]; it is safe for
// concurrent use.
type Client struct {
	// Metadata reads decoded metadata over one of the connections.
	Metadata metadata.Interface

	base       string // without a slash at the end
	transports []*http.Transport
	clients    []*http.Client
	next       atomic.Uint64
}

// New returns a client with the given number of connections. Each connection carries at most 250 concurrent requests,
// so the maximum concurrency is connections × 250. Call Close when the client is no longer needed.
func New(config *rest.Config, connections int) (*Client, error) {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("parse the address of the API server: %w", err)
	}

	c := &Client{base: strings.TrimRight(base.String(), "/")}

	for range connections {
		tlsConfig, err := rest.TLSConfigFor(config)
		if err != nil {
			return nil, fmt.Errorf("prepare a connection to the API server: %w", err)
		}

		transport := &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true, Proxy: http.ProxyFromEnvironment}

		wrapped, err := rest.HTTPWrappersForConfig(config, transport)
		if err != nil {
			return nil, fmt.Errorf("prepare a connection to the API server: %w", err)
		}

		c.transports = append(c.transports, transport)
		c.clients = append(c.clients, &http.Client{Transport: wrapped})
	}

	unlimited := rest.CopyConfig(config)

	unlimited.QPS = -1
	if c.Metadata, err = metadata.NewForConfigAndClient(metadata.ConfigFor(unlimited), c.clients[0]); err != nil {
		return nil, fmt.Errorf("create a metadata client: %w", err)
	}

	return c, nil
}

// Close closes idle connections.
func (c *Client) Close() {
	for _, t := range c.transports {
		t.CloseIdleConnections()
	}
}

// Request is one request to the API server.
type Request struct {
	// Method is the HTTP method. Path may end with a query; see [Kind.Path].
	Method, Path string
	// ContentType is the type of Body; empty means JSON.
	ContentType string
	Body        []byte
	// Accept is the type of the response; empty means JSON with only the metadata.
	Accept string
}

// Do sends a request and copies the response into answer, or discards it if answer is nil. Errors of the API server are
// an [apierrors.APIStatus], so that functions such as apierrors.IsNotFound work.
func (c *Client) Do(ctx context.Context, r Request, answer io.Writer) error {
	request, err := http.NewRequestWithContext(ctx, r.Method, c.base+r.Path, bytes.NewReader(r.Body))
	if err != nil {
		return fmt.Errorf("%s %s: %w", r.Method, r.Path, err)
	}

	if len(r.Body) > 0 {
		request.Header.Set("Content-Type", cmp.Or(r.ContentType, jsonType))
	}
	request.Header.Set("Accept", cmp.Or(r.Accept, metadataOnly))

	client := c.clients[c.next.Add(1)%uint64(len(c.clients))]

	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("%s %s: %w", r.Method, r.Path, err)
	}

	defer func() { _ = response.Body.Close() }() // was only read

	if response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s %s: %w", r.Method, r.Path, failure(response))
	}

	if answer == nil {
		answer = io.Discard
	}

	if _, err := io.Copy(answer, response.Body); err != nil {
		return fmt.Errorf("%s %s: read the answer: %w", r.Method, r.Path, err)
	}

	return nil
}

// failure returns the error in a response of the API server.
func failure(response *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("status %s, and no text: %w", response.Status, err)
	}

	var status metav1.Status
	if err := json.Unmarshal(text, &status); err != nil || status.Kind != "Status" {
		status = metav1.Status{
			Status: metav1.StatusFailure, Code: int32(response.StatusCode), //nolint:gosec // has three digits
			Message: fmt.Sprintf("status %s: %s", response.Status, strings.TrimSpace(string(text))),
		}
	}

	return &apierrors.StatusError{ErrStatus: status}
}

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

// Deployments are the main resource of rings without main objects.
var Deployments = schema.GroupResource{Group: "apps", Resource: "deployments"}

// Path returns the path of an object, or of the collection if name is empty. The namespace is empty for all namespaces.
func (k Kind) Path(namespace, name string) string {
	path := "/apis/" + k.Group + "/" + k.Version
	if k.Group == "" {
		path = "/api/" + k.Version
	}

	if namespace != "" {
		path += "/namespaces/" + namespace
	}

	return strings.TrimSuffix(path+"/"+k.Resource+"/"+name, "/")
}

// Batch names objects: Prefix-0 to Prefix-(Count-1).
type Batch struct {
	Kind              Kind
	Namespace, Prefix string
	Count             int
	// Labels returns the labels of a new object; nil means none. It is called concurrently.
	Labels func(i int) map[string]string
	// Owner is the controller of all objects; nil means none.
	Owner *metav1.OwnerReference
}

// Name returns the name of an object of the batch.
func (b Batch) Name(i int) string { return b.Prefix + "-" + strconv.Itoa(i) }

// Body returns the JSON of an object of the batch.
func (b Batch) Body(i int) ([]byte, error) {
	meta := map[string]any{"name": b.Name(i), "namespace": b.Namespace}
	if b.Labels != nil {
		meta["labels"] = b.Labels(i)
	}

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

	body, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", b.Kind.Kind, b.Name(i), err)
	}

	return body, nil
}

// Concurrency is the number of requests that measurements send at a time: as many as the rebalancer sends by default.
const Concurrency = 16

// pageSize is the number of objects per list request.
const pageSize = 5000

// Create creates the objects of a batch.
func (c *Client) Create(ctx context.Context, b Batch) error {
	path := b.Kind.Path(b.Namespace, "")

	return Each(ctx, b.Count, Concurrency, func(ctx context.Context, i int) error {
		body, err := b.Body(i)
		if err != nil {
			return err
		}

		return c.Do(ctx, Request{Method: http.MethodPost, Path: path, Body: body}, nil)
	})
}

// DryRun creates the first object of the batch with a dry run, which calls admission webhooks, and returns its
// metadata.
func (c *Client) DryRun(ctx context.Context, b Batch) (*metav1.PartialObjectMetadata, error) {
	body, err := b.Body(0)
	if err != nil {
		return nil, err
	}

	var answer bytes.Buffer
	if err := c.Do(ctx, Request{
		Method: http.MethodPost, Path: b.Kind.Path(b.Namespace, "") + "?dryRun=" + metav1.DryRunAll, Body: body,
	}, &answer); err != nil {
		return nil, err
	}

	object := &metav1.PartialObjectMetadata{}
	if err := json.Unmarshal(answer.Bytes(), object); err != nil {
		return nil, fmt.Errorf("decode the metadata of %s %s: %w", b.Kind.Kind, b.Name(0), err)
	}

	return object, nil
}

// Patch sends the same JSON merge patch for each object of a batch.
func (c *Client) Patch(ctx context.Context, b Batch, patch any) error {
	return Each(ctx, b.Count, Concurrency, func(ctx context.Context, i int) error {
		return c.MergePatch(ctx, b.Kind.Path(b.Namespace, b.Name(i)), patch)
	})
}

// MergePatch sends a JSON merge patch to one path.
func (c *Client) MergePatch(ctx context.Context, path string, patch any) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encode a patch of %s: %w", path, err)
	}

	return c.Do(ctx, Request{Method: http.MethodPatch, Path: path, ContentType: string(types.MergePatchType), Body: body},
		nil)
}

// Delete deletes the objects of a batch. It ignores objects that are already gone.
func (c *Client) Delete(ctx context.Context, b Batch) error {
	return Each(ctx, b.Count, Concurrency, func(ctx context.Context, i int) error {
		return c.Remove(ctx, b.Kind.Path(b.Namespace, b.Name(i)))
	})
}

// Remove deletes the object of one path. It ignores an object that is already gone.
func (c *Client) Remove(ctx context.Context, path string) error {
	err := c.Do(ctx, Request{Method: http.MethodDelete, Path: path}, nil)
	if apierrors.IsNotFound(err) {
		return nil
	}

	return err
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
		return c.Remove(ctx, s.Kind.Path(list[i].Namespace, list[i].Name))
	})
}

// List returns the metadata of the selected objects. It lists page by page.
func (c *Client) List(ctx context.Context, s Selection) ([]metav1.PartialObjectMetadata, error) {
	var list []metav1.PartialObjectMetadata

	options := metav1.ListOptions{LabelSelector: s.Labels, Limit: pageSize}
	for {
		page, err := c.of(s).List(ctx, options)
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
		group.Go(func() error {
			if each.Err() != nil {
				return context.Cause(each)
			}

			return do(each, i)
		})
	}

	return cmp.Or(group.Wait(), context.Cause(ctx)) //nolint:wrapcheck // the caller's own error
}

// patience limits [Watch.Until].
const patience = 5 * time.Minute

// Watch follows objects until Stop. Create it with [Client.Watch]; Until is for one goroutine at a time.
type Watch struct {
	cancel context.CancelFunc
	waits  []func()

	mu        sync.Mutex
	condition func() bool
	done      chan struct{} // of the condition
	err       error
}

// Watch calls see for each selected object, as an added one, and then for each change, one call at a time. A broken
// watch resumes where it has ended. Call Stop on the result.
func (c *Client) Watch(
	ctx context.Context, see func(event watch.EventType, of Kind, o *metav1.PartialObjectMetadata), what ...Selection,
) (*Watch, error) {
	w := &Watch{}
	ctx, w.cancel = context.WithCancel(ctx)

	for _, s := range what {
		wait, err := record.Follow(ctx, c.of(s), s.Labels, record.Observer[*metav1.PartialObjectMetadata]{
			See: func(event watch.EventType, o *metav1.PartialObjectMetadata) {
				w.update(func() { see(event, s.Kind, o) })
			},
			Fail: func(err error) {
				w.update(func() { w.err = fmt.Errorf("watch %s: %w", s.Kind.Resource, err) })
			},
		})
		if err != nil {
			w.Stop()
			return nil, fmt.Errorf("watch %s: %w", s.Kind.Resource, err)
		}

		w.waits = append(w.waits, wait)
	}

	return w, nil
}

func (c *Client) of(s Selection) metadata.ResourceInterface {
	return c.Metadata.Resource(s.Kind.GroupVersionResource).Namespace(s.Namespace)
}

// update changes what the condition depends on, and ends the wait for it if it holds now.
func (w *Watch) update(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()

	change()

	if w.condition != nil && (w.err != nil || w.condition()) {
		close(w.done)
		w.condition = nil
	}
}

// Until waits until the condition holds. The condition is called after each event, never at the same time as see. The
// text what describes it in the error.
func (w *Watch) Until(ctx context.Context, what string, condition func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience,
		fmt.Errorf("wait until %s: it has taken more than %s", what, patience))
	defer cancel()

	done := make(chan struct{})
	w.update(func() { w.condition, w.done = condition, done })

	select {
	case <-done:
		return w.Err()
	case <-ctx.Done():
		w.update(func() { w.condition = nil })
		return context.Cause(ctx)
	}
}

// Err returns the error that has ended the watch, if any.
func (w *Watch) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.err
}

// Stop ends the watch. After that, nothing is seen.
func (w *Watch) Stop() {
	w.cancel()

	for _, wait := range w.waits {
		wait()
	}
}
