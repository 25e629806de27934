package assigner_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// caller calls the webhook over HTTP/2, as an API server does, at any of the replicas that are in service.
type caller struct {
	client  *http.Client
	service atomic.Pointer[[]*replica]
	dialed  atomic.Int64
	url     string
	review  []byte
}

// caller trusts the registration of the ring and asks about a new object of it.
func (f *fixture) caller(service ...*replica) *caller {
	f.t.Helper()

	roots := x509.NewCertPool()
	require.True(f.t, roots.AppendCertsFromPEM(f.configuration().Webhooks[0].ClientConfig.CABundle))

	c := &caller{url: *f.configuration().Webhooks[0].ClientConfig.URL}
	c.service.Store(&service)

	transport := &http.Transport{
		ForceAttemptHTTP2: true,
		TLSClientConfig:   &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			in := *c.service.Load()
			at := in[int(c.dialed.Add(1))%len(in)]

			return (&net.Dialer{}).DialContext(ctx, network, strings.TrimPrefix(at.url, "https://"))
		},
	}
	f.t.Cleanup(transport.CloseIdleConnections)
	c.client = &http.Client{Transport: transport}

	object, err := json.Marshal(f.website("asked"))
	require.NoError(f.t, err)
	c.review, err = json.Marshal(&admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "asked", Operation: admissionv1.Create, Name: "asked", Namespace: f.namespace,
			Kind:     metav1.GroupVersionKind{Group: f.kind.Group, Version: f.kind.Version, Kind: f.kind.Kind},
			Resource: metav1.GroupVersionResource{Group: f.kind.Group, Version: f.kind.Version, Resource: "websites"},
			Object:   runtime.RawExtension{Raw: object},
		},
	})
	require.NoError(f.t, err)

	return c
}

// ask makes a call. It fails if the answer does not assign the object.
func (c *caller) ask(ctx context.Context) error { return c.send(ctx, bytes.NewReader(c.review)) }

// send makes a call with this body.
func (c *caller) send(ctx context.Context, body io.Reader) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, body)
	if err != nil {
		return err
	}

	req.ContentLength = int64(len(c.review))
	req.Header.Set("Content-Type", "application/json")

	res, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()

	var answer admissionv1.AdmissionReview
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return err
	}

	if res.ProtoMajor != 2 || answer.Response == nil || len(answer.Response.Patch) == 0 {
		return fmt.Errorf("%s, status %d: %v", res.Proto, res.StatusCode, answer.Response)
	}

	return nil
}

// lasting makes a call that lasts until the function is called, which returns how it ended.
func (c *caller) lasting(t *testing.T) (end func() error) {
	t.Helper()

	rest, body := io.Pipe()
	began, done := make(chan struct{}), make(chan error, 1)

	go func() {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{WroteHeaders: func() { close(began) }})
		done <- c.send(ctx, rest)
	}()

	half := len(c.review) / 2
	_, err := body.Write(c.review[:half])
	require.NoError(t, err)
	<-began
	require.NoError(t, c.ask(t.Context()), "over the same connection, so that the server knows of both")

	return func() error {
		_, err := body.Write(c.review[half:])
		require.NoError(t, err)
		require.NoError(t, body.Close())

		return <-done
	}
}

// TestRestartFailsNoCall stops one of two assigners under load. Who dials gets either of them until the one that stops is known
// not to be ready, as with a Service.
func TestRestartFailsNoCall(t *testing.T) {
	f := newFixture(t, unique("restart"), "a")
	leaving := start(t, f.Plane, "--shutdown-delay=3s")
	staying := start(t, f.Plane, "--webhook-url="+leaving.url)
	f.registered()

	c, direct := f.caller(leaving, staying), f.caller(leaving)

	var callers sync.WaitGroup

	busy, stop := context.WithCancel(t.Context())
	failed := make(chan error, 8)

	for range cap(failed) {
		callers.Go(func() {
			for busy.Err() == nil {
				if err := c.ask(t.Context()); err != nil {
					failed <- err
					return
				}
			}
		})
	}

	stopped := make(chan struct{})

	go func() {
		defer close(stopped)
		leaving.stop()
	}()

	eventually(t, func() bool { return !leaving.ready() }, "it is not ready any more")
	require.NoError(t, direct.ask(t.Context()), "it answers those who do not know yet")
	c.service.Store(&[]*replica{staying})

	end := direct.lasting(t)
	eventually(t, func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(leaving.url, "https://"))
		if err == nil {
			_ = conn.Close()
		}

		return err != nil
	}, "it listens no more")
	require.NoError(t, end(), "a call under way has failed")
	<-stopped

	stop()
	callers.Wait()
	close(failed)
	require.NoError(t, <-failed, "a call has failed")
	require.Greater(t, c.dialed.Load(), int64(2), "both have answered")
}
