package admission

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
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
	process, url string
	client       *http.Client
}

// newCaller returns a caller of the webhook of a process, which is verified by a CA bundle.
func newCaller(b *run.Bench, process, url string, ca []byte) (*caller, error) {
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("the registration of %s has no CA bundle", url)
	}

	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
		MaxIdleConnsPerHost: objects.Concurrency,
	}
	b.Cleanup(func(context.Context) error {
		transport.CloseIdleConnections()
		return nil
	})

	return &caller{process, url + "?timeout=5s", &http.Client{Transport: transport, Timeout: callTimeout}}, nil
}

// registered returns the webhook that is registered for a ring.
func registered(ctx context.Context, c client.Client, ring string) (*admissionregistrationv1.MutatingWebhook, error) {
	var configuration admissionregistrationv1.MutatingWebhookConfiguration
	if err := c.Get(ctx, client.ObjectKey{Name: contract.WebhookConfigurationName(ring)}, &configuration); err != nil {
		return nil, fmt.Errorf("read the registration of ring %s: %w", ring, err)
	}

	for i := range configuration.Webhooks {
		if w := &configuration.Webhooks[i]; w.Name == contract.WebhookName {
			return w, nil
		}
	}

	return nil, fmt.Errorf("the registration %s has no webhook %s", configuration.Name, contract.WebhookName)
}

// call sends one review, and returns an error unless it is answered.
func (c *caller) call(ctx context.Context, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("call a webhook: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, */*")

	response, err := c.client.Do(request)
	if err != nil {
		return fmt.Errorf("call a webhook: %w", err)
	}

	answer, err := io.ReadAll(response.Body)
	err = errors.Join(err, response.Body.Close())

	if err == nil && (response.StatusCode != http.StatusOK || !bytes.Contains(answer, []byte(`"patch"`))) {
		err = fmt.Errorf("status %s, %s", response.Status, answer)
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

// reviews returns the bodies of n admission reviews, each of the creation of another ConfigMap of about 2 kB in the
// namespace, with all that an API server sends along: who it is, options, managed fields.
func reviews(namespace string, n int) ([][]byte, error) {
	bodies := make([][]byte, n)
	for i := range bodies {
		name := "admitted-" + strconv.Itoa(i)

		object, err := json.Marshal(configMap(namespace, name))
		if err != nil {
			return nil, fmt.Errorf("encode ConfigMap %s: %w", name, err)
		}

		gvk := metav1.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
		gvr := metav1.GroupVersionResource{Version: "v1", Resource: "configmaps"}

		body, err := json.Marshal(admissionv1.AdmissionReview{
			TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
			Request: &admissionv1.AdmissionRequest{
				UID:  types.UID(fmt.Sprintf("705ab4f5-6393-11e8-b7cc-%012d", i)),
				Kind: gvk, Resource: gvr, RequestKind: &gvk, RequestResource: &gvr,
				Name: name, Namespace: namespace, Operation: admissionv1.Create,
				UserInfo: authenticationv1.UserInfo{
					Username: "system:serviceaccount:" + namespace + ":author", UID: "b7b5a3e2-9a0f-4c61-a3f5-6dd1de6a5d2c",
					Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
					Extra: map[string]authenticationv1.ExtraValue{
						"authentication.kubernetes.io/credential-id": {"JTI=5a1c9d1c-3c0e-4a67-8a4b-0f6a0a7b1f57"},
						"authentication.kubernetes.io/pod-name":      {"author-7d4b9c6f5-x2x9z"},
					},
				},
				Object: runtime.RawExtension{Raw: object}, DryRun: new(false),
				Options: runtime.RawExtension{
					Raw: []byte(`{"kind":"CreateOptions","apiVersion":"meta.k8s.io/v1","fieldManager":"author"}`),
				},
			},
		})
		if err != nil {
			return nil, fmt.Errorf("encode an admission review: %w", err)
		}

		bodies[i] = body
	}

	return bodies, nil
}

func configMap(namespace, name string) *corev1.ConfigMap {
	const lines = 24

	return &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: namespace, UID: "9e5c3a2f-8d52-4a6b-b6f0-6d3d7b0f6c11",
			CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
			Annotations:       map[string]string{"example.com/made-by": "an author of ConfigMaps"},
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: "author", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
				FieldsV1: metav1.NewFieldsV1(
					`{"f:data":{".":{},"f:settings.properties":{}},"f:metadata":{"f:annotations":{".":{},"f:example.com/made-by":{}}}}`,
				),
			}},
		},
		Data: map[string]string{"settings.properties": string(bytes.Repeat([]byte("some.setting.of.the.program = a value\n"),
			lines))},
	}
}
