package shard_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/cert"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/clusterring/clusterring/pkg/shard"
)

// permissive is a validating webhook.
type permissive struct{}

func (permissive) ValidateCreate(context.Context, *corev1.ConfigMap) (admission.Warnings, error) {
	return nil, nil
}

func (permissive) ValidateUpdate(context.Context, *corev1.ConfigMap, *corev1.ConfigMap) (admission.Warnings, error) {
	return nil, nil
}

func (permissive) ValidateDelete(context.Context, *corev1.ConfigMap) (admission.Warnings, error) {
	return nil, nil
}

// service forwards connections to the Pods that were ready when it last looked, as a Service does.
type service struct {
	listener net.Listener
	done     sync.WaitGroup

	mu   sync.Mutex
	pods map[string]string // the probe by the address of the webhook
	next int
	good []string
}

func newService(f *operators) *service {
	f.Helper()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(f, err)

	s := &service{listener: listener, pods: map[string]string{}}
	ctx, cancel := context.WithCancel(context.Background())
	s.done.Go(func() { s.probe(ctx) })
	s.done.Go(s.serve)
	f.Cleanup(func() {
		cancel()
		require.NoError(f, listener.Close())
		s.done.Wait()
	})

	return s
}

// probe looks which Pods are ready, twice a second: a Pod that was told to stop gets connections until the next look.
func (s *service) probe(ctx context.Context) {
	_ = wait.PollUntilContextCancel(ctx, 500*time.Millisecond, false, func(context.Context) (bool, error) {
		s.mu.Lock()
		defer s.mu.Unlock()

		s.good = nil

		for address, probe := range s.pods {
			if status(probe) == http.StatusOK {
				s.good = append(s.good, address)
			}
		}

		return false, nil
	})
}

func (s *service) serve() {
	for {
		client, err := s.listener.Accept()
		if err != nil {
			return
		}

		s.done.Go(func() { s.forward(client) })
	}
}

func (s *service) forward(client net.Conn) {
	defer client.Close()

	s.mu.Lock()
	s.next++

	if len(s.good) == 0 {
		s.mu.Unlock()
		return
	}

	address := s.good[s.next%len(s.good)]
	s.mu.Unlock()

	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}

	defer server.Close()

	var both sync.WaitGroup

	both.Go(func() {
		_, _ = io.Copy(server, client)
		_ = server.(*net.TCPConn).CloseWrite() //nolint:forcetypeassert // it was dialed by TCP
	})
	both.Go(func() {
		_, _ = io.Copy(client, server)
		_ = client.Close()
	})
	both.Wait()
}

// pod runs a replica of an operator with a webhook.
func (f *operators) webhookPod(s *service, certs, name string) (stop func() error) {
	f.Helper()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(f, err)

	address := listener.Addr().String()
	require.NoError(f, listener.Close())

	_, port, err := net.SplitHostPort(address)
	require.NoError(f, err)
	number, err := strconv.Atoi(port)
	require.NoError(f, err)

	o, probe := f.served()
	o.WebhookServer = webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: number, CertDir: certs})
	mgr, err := shard.NewManager(f.config, o, f.slot(name, 2))
	require.NoError(f, err)
	require.NoError(f, newOperator().SetupWithManager(mgr, "maps"))
	require.NoError(f, ctrl.NewWebhookManagedBy(mgr, &corev1.ConfigMap{}).WithValidator(permissive{}).Complete())

	stopManager := f.start(mgr)

	s.mu.Lock()
	s.pods[address] = probe
	s.mu.Unlock()
	f.eventually(func() bool { return status(probe) == http.StatusOK }, "the Pod is ready")

	return func() error {
		err := stopManager()

		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.pods, address)

		return err
	}
}

// certificate returns a directory with a certificate for webhooks, and the certificate, which has signed itself.
func (f *operators) certificate() (dir string, ca []byte) {
	dir = f.TempDir()
	ca, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	require.NoError(f, err)
	require.NoError(f, os.WriteFile(filepath.Join(dir, "tls.crt"), ca, 0o600))
	require.NoError(f, os.WriteFile(filepath.Join(dir, "tls.key"), key, 0o600))

	return dir, ca
}

// Three replicas, one of which waits for a slot, serve a webhook without which nothing can be created. A rolling update replaces all of them.
func TestWebhooksAreServedByAllReplicasAllTheTime(t *testing.T) {
	f := newOperators(t)
	certs, ca := f.certificate()
	s := newService(f)

	var stops []func() error
	for i := range 3 {
		stops = append(stops, f.webhookPod(s, certs, fmt.Sprintf("pod-%d", i)))
	}

	f.eventually(func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()

		return len(s.good) == 3
	}, "a standby is an endpoint, too")

	config := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: f.namespace},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "maps.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: new(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy: new(admissionregistrationv1.Fail), TimeoutSeconds: new(int32(10)),
			ClientConfig:      admissionregistrationv1.WebhookClientConfig{URL: new("https://" + s.listener.Addr().String() + "/validate--v1-configmap"), CABundle: ca},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: f.namespace}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}
	require.NoError(t, f.admin.Create(t.Context(), config))
	t.Cleanup(func() { require.NoError(t, f.admin.Delete(context.Background(), config)) }) //nolint:usetesting // the test's context has ended

	create := func() error {
		return f.admin.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, GenerateName: "user-"}})
	}
	f.eventually(func() bool { return create() == nil }, "the webhook is in force")

	ctx, cancel := context.WithCancel(t.Context())
	created, refused := 0, []error(nil)
	user := make(chan struct{})

	go func() {
		defer close(user)

		for ctx.Err() == nil {
			if err := create(); err != nil {
				refused = append(refused, err)
			} else {
				created++
			}
		}
	}()

	for i, stop := range stops {
		next := f.webhookPod(s, certs, fmt.Sprintf("next-%d", i))
		require.NoError(t, stop())
		t.Cleanup(func() { require.NoError(t, next()) })
	}

	cancel()
	<-user
	t.Logf("%d objects created", created)
	require.Empty(t, refused)
	require.Positive(t, created)
}
