package admission

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/usage"
)

// callTimeout is how long a call may take: as much as the registration of a ring allows.
const callTimeout = 5 * time.Second

// caller sends admission reviews to a webhook as an API server does to one on its own host: POST over TLS, connections
// kept, HTTP/2.
type caller struct {
	process string
	client  *http.Client
	rest    rest.Interface
}

// newCaller returns a caller of the webhook of a process, which is verified by a CA bundle.
func newCaller(b *run.Bench, process, url string, ca []byte) (*caller, error) {
	config := &rest.Config{
		Host: url, TLSClientConfig: rest.TLSClientConfig{CAData: ca}, Timeout: callTimeout, QPS: -1,
		ContentConfig: rest.ContentConfig{NegotiatedSerializer: scheme.Codecs},
	}
	c := &caller{process: process}

	var err error
	if c.client, err = rest.HTTPClientFor(config); err != nil {
		return nil, fmt.Errorf("prepare a connection to %s: %w", url, err)
	}
	b.Cleanup(func(context.Context) error {
		utilnet.CloseIdleConnectionsFor(c.client.Transport)
		return nil
	})

	if c.rest, err = rest.UnversionedRESTClientForConfigAndClient(config, c.client); err != nil {
		return nil, fmt.Errorf("create a client of %s: %w", url, err)
	}

	return c, nil
}

// registered returns the webhook that is registered for a ring.
func registered(ctx context.Context, c client.Client, ring string) (*admissionregistrationv1.MutatingWebhook, error) {
	var configuration admissionregistrationv1.MutatingWebhookConfiguration
	if err := c.Get(ctx, client.ObjectKey{Name: contract.WebhookConfigurationName(ring)}, &configuration); err != nil {
		return nil, fmt.Errorf("read the registration of ring %s: %w", ring, err)
	}

	at := slices.IndexFunc(configuration.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool {
		return w.Name == contract.WebhookName
	})
	if at < 0 {
		return nil, fmt.Errorf("the registration %s has no webhook %s", configuration.Name, contract.WebhookName)
	}

	return &configuration.Webhooks[at], nil
}

// call sends one review, and returns an error unless it is answered with a patch.
func (c *caller) call(ctx context.Context, body []byte) error {
	answer, err := c.rest.Post().SetHeader("Content-Type", "application/json").Body(body).DoRaw(ctx)
	if err == nil && !bytes.Contains(answer, []byte(`"patch"`)) {
		err = fmt.Errorf("no patch in %s", answer)
	}

	if err != nil {
		return fmt.Errorf("call a webhook: %w", err)
	}

	return nil
}

// cost calls the webhook n times and returns the CPU time that its process has used per call, in microseconds.
func (c *caller) cost(ctx context.Context, reader usage.Reader, bodies [][]byte, n int) (float64, error) {
	ms, err := reader.CPU(c.process, func() error {
		return objects.Each(ctx, n, objects.Concurrency, func(ctx context.Context, i int) error {
			return c.call(ctx, bodies[i%len(bodies)])
		})
	})

	return ms * 1000 / float64(n), err
}

// review is an admission review of the creation of a ConfigMap, with all that an API server sends along: who creates
// it, options, managed fields.
//
//go:embed review.json
var review []byte

// reviews returns the bodies of n admission reviews, each of another ConfigMap of about 2 kB in the namespace.
func reviews(namespace string, n int) ([][]byte, error) {
	const lines = 24

	var compact bytes.Buffer
	if err := json.Compact(&compact, review); err != nil {
		return nil, fmt.Errorf("read an admission review: %w", err)
	}

	bodies := make([][]byte, n)
	for i := range bodies {
		bodies[i] = []byte(strings.NewReplacer("NAMESPACE", namespace, "NUMBER", fmt.Sprintf("%012d", i),
			"SETTINGS", strings.Repeat(`some.setting.of.the.program = a value\n`, lines)).Replace(compact.String()))
	}

	return bodies, nil
}
