// Package objects creates, patches, deletes, and counts objects in bulk. On this machine it costs little more than HTTP: bodies are
// bytes, responses are not decoded, and only the concurrency limits the rate.
package objects

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// TurnLabel is the label that measurements change to cause a write without a consequence. The rebalancer may write it: to its admission
// policy it is a drain label, but of no ring.
const TurnLabel = contract.LabelDrainPrefix + "load-turn"

const (
	jsonType = "application/json"
	// metadataOnly requests only the metadata of an object.
	metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	// maxAnswer limits the size of an error text, in bytes.
	maxAnswer = 64 << 10
)

// Client sends requests to an API server over several HTTP/2 connections. Create it with [New]; it is safe for concurrent use.
type Client struct {
	// Metadata reads decoded metadata over one of the connections.
	Metadata metadata.Interface

	base       string // without a slash at the end
	transports []*http.Transport
	clients    []*http.Client
	next       atomic.Uint64
}

// New returns a client with the given number of connections. Each connection carries at most 250 concurrent requests, so
// the maximum concurrency is connections × 250. Call Close when the client is no longer needed.
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

// Do sends a request and copies the response into answer, or discards it if answer is nil. Errors of the API server are an
// [apierrors.APIStatus], so that functions such as apierrors.IsNotFound work.
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
