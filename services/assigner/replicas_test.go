package assigner_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/certtest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
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

	c := &caller{url: *f.configuration().Webhooks[0].ClientConfig.URL}
	c.service.Store(&service)

	transport := &http.Transport{
		ForceAttemptHTTP2: true,
		TLSClientConfig:   &tls.Config{RootCAs: f.roots(), MinVersion: tls.VersionTLS12},
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

// send makes a call with this body, which has the length of the review.
func (c *caller) send(ctx context.Context, body io.Reader) error {
	status, answer, err := c.post(ctx, c.url, body)
	if err == nil && (status != http.StatusOK || !strings.Contains(answer, `"patch"`)) {
		err = fmt.Errorf("status %d: %s", status, answer)
	}

	return err
}

// post sends a body of the review's length to a URL.
func (c *caller) post(ctx context.Context, to string, body io.Reader) (status int, answer string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, body)
	if err != nil {
		return 0, "", err
	}

	req.ContentLength = int64(len(c.review))
	req.Header.Set("Content-Type", "application/json")

	res, err := c.client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()

	all, err := io.ReadAll(res.Body)
	if err == nil && res.ProtoMajor != 2 {
		err = errors.New(res.Proto)
	}

	return res.StatusCode, string(all), err
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

// TestRestartFailsNoCall stops one of two assigners under load. Who dials gets either of them until the one that stops
// is known not to be ready, as with a Service.
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

func (f *fixture) tlsSecret() *corev1.Secret {
	f.t.Helper()

	s := &corev1.Secret{}
	if err := f.Client.Get(f.t.Context(), client.ObjectKey{Namespace: contract.SystemNamespace, Name: "assigner-tls"},
		s); err != nil {
		require.True(f.t, apierrors.IsNotFound(err), err)
	}

	return s
}

// roots are the CA certificates that API servers verify the webhook with.
func (f *fixture) roots() *x509.CertPool {
	f.t.Helper()

	pool := x509.NewCertPool()
	require.True(f.t, pool.AppendCertsFromPEM(f.configuration().Webhooks[0].ClientConfig.CABundle))

	return pool
}

// handshake connects as an API server does that knows the ring's registration, and returns the certificate that is
// served.
func (f *fixture) handshake(r *replica) *x509.Certificate {
	f.t.Helper()

	dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: 5 * time.Second},
		Config: &tls.Config{RootCAs: f.roots(), MinVersion: tls.VersionTLS12}}
	conn, err := dialer.DialContext(f.t.Context(), "tcp", strings.TrimPrefix(r.url, "https://"))
	require.NoError(f.t, err, "what is served is trusted at any time")

	defer conn.Close()

	tlsConn, _ := conn.(*tls.Conn)

	return tlsConn.ConnectionState().PeerCertificates[0]
}

// TestRotation orders a rotation, of certificate and authority, while objects are created: none may miss its shard.
func TestRotation(t *testing.T) {
	f := newFixture(t, "rotation", "a")
	// A tenth of the lifetime is how long the new authority is known before it signs.
	lifetimes := []string{"--tls-cert-lifetime=60s", "--tls-ca-lifetime=180s"}
	r := start(t, f.Plane, lifetimes...)
	f.registered()

	first, firstBundle := f.handshake(r), f.configuration().Webhooks[0].ClientConfig.CABundle
	require.NoError(t, f.Client.Delete(t.Context(), f.tlsSecret()))

	overlapped := false

	eventually(t, func() bool {
		require.Equal(t, "a", f.create(f.website(unique("during"))).GetLabels()[f.shardLabel()])

		same := first.Equal(f.handshake(r))
		overlapped = overlapped || same && !bytes.Equal(firstBundle, f.configuration().Webhooks[0].ClientConfig.CABundle)

		return !same
	}, "another certificate is served")
	require.True(t, overlapped, "the new authority was published before it signed")
	require.Equal(t, f.tlsSecret().Data["ca.crt"], f.configuration().Webhooks[0].ClientConfig.CABundle)

	t.Run("a restart changes nothing", func(t *testing.T) {
		served, stored := f.handshake(r), f.tlsSecret().ResourceVersion
		r.stop()

		r := start(t, f.Plane, append(lifetimes, "--webhook-url="+r.url)...)
		require.True(t, served.Equal(f.handshake(r)))
		require.Equal(t, stored, f.tlsSecret().ResourceVersion)
	})

	t.Run("another host gets another certificate", func(t *testing.T) {
		start(t, f.Plane, "--webhook-url=https://localhost:1")
		require.NoError(t, certificate(t, f.tlsSecret()).VerifyHostname("localhost"))
		require.NoError(t, certificate(t, f.tlsSecret()).VerifyHostname("127.0.0.1"),
			"others may still be called by the old one")
	})
}

// TestOnlyKnownClientsMayCall: with --client-ca-file, a caller without a certificate of an API server gets no answer.
func TestOnlyKnownClientsMayCall(t *testing.T) {
	f := newFixture(t, "clients", "a")
	authority := certtest.NewAuthority(t)
	file := filepath.Join(t.TempDir(), "ca.crt")

	cmd := newCommand([]string{"--kubeconfig", f.ServiceKubeconfig(t, "assigner"), "--webhook-mode=url",
		"--webhook-url=https://127.0.0.1:1",
		"--webhook-bind-address=" + localplane.FreeAddress(t), "--metrics-bind-address=0", "--health-probe-bind-address=0",
		"--client-ca-file=" + file})
	require.ErrorContains(t, cmd.ExecuteContext(t.Context()), "--client-ca-file")

	require.NoError(t, os.WriteFile(file, authority.PEM(), 0o600))
	r := start(t, f.Plane, "--client-ca-file="+file)
	eventually(t, func() bool { return f.configuration() != nil }, "the webhook is registered")

	c := f.caller(r)
	require.Error(t, c.ask(t.Context()))

	trusted, _ := c.client.Transport.(*http.Transport)
	trusted.TLSClientConfig.Certificates = []tls.Certificate{authority.Client(t, time.Time{}, "kube-apiserver").TLS(t)}
	require.NoError(t, c.ask(t.Context()))
}

func certificate(t *testing.T, s *corev1.Secret) *x509.Certificate {
	t.Helper()

	parsed, err := cert.ParseCertsPEM(s.Data[corev1.TLSCertKey])
	require.NoError(t, err)

	return parsed[0]
}

// TestReplicas: each serves without being the leader, and registration goes on when the leader goes.
func TestReplicas(t *testing.T) {
	f := newFixture(t, "replicas", "a")
	require.NoError(t, client.IgnoreNotFound(f.Client.Delete(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: contract.SystemNamespace, Name: "assigner-tls"},
	})))

	leader := launch(t, f.Plane)
	standby := launch(t, f.Plane, "--webhook-url="+leader.url) // as behind a Service: one address for both

	eventually(t, leader.ready, "a fresh installation becomes ready")
	eventually(t, standby.ready, "its second replica, too")
	f.registered()
	require.True(t, f.handshake(leader).Equal(f.handshake(standby)))

	for _, r := range []*replica{leader, standby} {
		if !strings.Contains(r.logs.String(), `"kind": "MutatingWebhookConfiguration"`) {
			continue // not the leader
		}

		r.stop()
		require.NoError(t, f.Client.Delete(t.Context(), f.configuration()))
		eventually(t, func() bool { return f.configuration() != nil }, "the other one registers the webhook")

		return
	}

	t.Fatal("neither replica has registered the webhook")
}

// writePair writes a new certificate with its key to files, and returns the certificate with its authority.
func writePair(t *testing.T, certFile, keyFile string) []byte {
	t.Helper()

	pair, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", nil, nil)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(keyFile, key, 0o600))
	require.NoError(t, os.WriteFile(certFile, pair, 0o600))

	return pair
}

// TestInjectedBundle plays cert-manager, whose injector fills in the bundle.
func TestInjectedBundle(t *testing.T) {
	f := newFixture(t, "injected", "a")
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	bundle := writePair(t, certFile, keyFile)

	start(t, f.Plane, "--ca-mode=cert-manager", "--cert-manager-inject-ca-from=sharding-system/assigner",
		"--tls-cert-file="+certFile, "--tls-private-key-file="+keyFile)
	eventually(t, func() bool { return f.reason() == "False RegistrationFailed" },
		"the API server cannot call the assigner yet")

	c := f.configuration()
	require.Equal(t, "sharding-system/assigner", c.Annotations["cert-manager.io/inject-ca-from"])
	require.Empty(t, c.Webhooks[0].ClientConfig.CABundle)

	for i := range c.Webhooks {
		c.Webhooks[i].ClientConfig.CABundle = bundle
	}

	require.NoError(t, f.Client.Update(t.Context(), c))
	f.asked()
	eventually(t, func() bool { return f.reason() == "True Registered" }, "the webhook is registered")

	f.changeRing(func(r *v1alpha1.ClusterRing) { r.Spec.Resources[0].ControlledResources = nil })
	eventually(t, func() bool { return f.rules() == 1 }, "the rules follow the ring")
	require.Equal(t, bundle, f.configuration().Webhooks[0].ClientConfig.CABundle)
}

func TestMistakes(t *testing.T) {
	files := []string{"--ca-mode=cert-manager", "--tls-cert-file=/nowhere", "--tls-private-key-file=/nowhere"}
	kubeconfig := "--kubeconfig=" + localplane.Shared(t).ServiceKubeconfig(t, "assigner")

	for what, c := range map[string]struct {
		args []string
		want string
	}{
		"mode":             {[]string{"--webhook-mode=x"}, `--webhook-mode must be service or url, not "x"`},
		"ca mode":          {[]string{"--ca-mode=x"}, `--ca-mode must be secret or cert-manager, not "x"`},
		"no URL":           {[]string{"--webhook-mode=url"}, `--webhook-url must be like https://host:port, not ""`},
		"URL without mode": {[]string{"--webhook-url=https://x"}, "--webhook-url is for --webhook-mode url"},
		"address": {[]string{"--webhook-bind-address=:0"},
			`--webhook-bind-address ":0" is no address: want host:port or :port, with a port from 1 to 65535`},
		"service": {[]string{"--webhook-service-name=A"}, `--webhook-service-name "A" is no name of a Service`},
		"no files": {[]string{"--ca-mode=cert-manager"},
			"--tls-cert-file and --tls-private-key-file are required with --ca-mode cert-manager"},
		"files of a secret": {[]string{"--tls-cert-file=x"},
			"--tls-cert-file and --tls-private-key-file are for --ca-mode cert-manager"},
		"no Certificate": {append(files[:3:3], "--cert-manager-inject-ca-from=x"),
			`--cert-manager-inject-ca-from must name a Certificate as namespace/name, not "x"`},
		"missing file": {append(files[:3:3], "--cert-manager-inject-ca-from=a/b", kubeconfig),
			"read the serving certificate: stat /nowhere: no such file or directory (--tls-cert-file"},
	} {
		t.Run(what, func(t *testing.T) {
			cmd := newCommand(append(c.args, "--metrics-bind-address=0", "--health-probe-bind-address=0"))
			err := cmd.ExecuteContext(context.WithoutCancel(t.Context()))
			require.ErrorContains(t, err, c.want)
		})
	}
}
