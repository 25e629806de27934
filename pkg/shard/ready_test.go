package shard

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/cert"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// served are options of a manager with probes.
func (f *fixture) served() (o manager.Options, url string) {
	f.Helper()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(f, err)
	require.NoError(f, listener.Close())

	o = f.options()
	o.HealthProbeBindAddress = listener.Addr().String()

	return o, "http://" + o.HealthProbeBindAddress + "/readyz"
}

// status returns the code of the answer; 0 if there is none.
func status(url string) int {
	resp, err := http.Get(url)
	if err != nil {
		return 0
	}

	defer resp.Body.Close()

	return resp.StatusCode
}

// gated is an index function that lets a cache be filled when it is opened.
func gated(open <-chan struct{}) client.IndexerFunc {
	return func(client.Object) []string {
		<-open
		return nil
	}
}

// A container that restarts holds its slot from the claim on, however long its caches take to be filled; it is ready
// when it works.
func TestClaimedSlotIsRenewedWhileCachesAreFilled(t *testing.T) {
	f, o := newFixture(t), newOperator()
	options := f.slotOptions("pod-a", 1)
	options.LeaseDuration, options.RenewDeadline = 3*time.Second, 2*time.Second
	served, url := f.served()
	mgr, err := NewManager(f.config, served, options)
	require.NoError(t, err)

	open := make(chan struct{})
	require.NoError(t, mgr.GetFieldIndexer().IndexField(t.Context(), &corev1.ConfigMap{}, "gate", gated(open)))
	require.NoError(t, o.SetupWithManager(mgr, "maps"))

	slot := f.namespace + "-0"
	f.configMapOf(slot, "mine")
	f.launch(mgr.Start)
	f.eventually("it claims the slot", func() bool { return holder(f.leaseOf(slot)) == slot })

	claimed := f.leaseOf(slot).Spec.RenewTime.Time
	f.eventually("it renews the Lease",
		func() bool { return f.leaseOf(slot).Spec.RenewTime.Sub(claimed) > 2*options.LeaseDuration })
	require.Equal(t, http.StatusInternalServerError, status(url), "it does not work yet")
	require.Equal(t, "pod-a", f.leaseOf(slot).Annotations["alpha.sharding.timebertt.dev/pod"])
	require.Zero(t, o.calls("mine"))

	close(open)
	f.eventually("it works", func() bool { return o.calls("mine") > 0 })
	f.eventually("it is ready", func() bool { return status(url) == http.StatusOK })
}

// working returns a process that works as a shard.
func (f *fixture) working(o Options) *process {
	f.Helper()
	mgr := f.manager(o)
	require.NoError(f, newOperator().SetupWithManager(mgr, "maps"))
	p := f.launch(mgr.Start)
	receive(f, mgr.Elected(), "it works")

	return p
}

// While a Pod stands by, it serves probes, and what runs in every replica reads kinds that are not sharded.
func TestStandbyServes(t *testing.T) {
	f := newFixture(t)
	p := f.working(f.slotOptions("pod-a", 1))

	options := f.slotOptions("pod-b", 1)
	options.Controllers = map[string]Placement{"own": EveryReplica()}
	served, url := f.served()
	mgr, err := NewManager(f.config, served, options)
	require.NoError(t, err)

	o := newOperator()
	require.NoError(t, o.SetupWithManager(mgr, "maps"))

	read := make(chan error, 10)
	own := reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
		read <- errors.Join(mgr.GetClient().List(ctx, &corev1.SecretList{}, client.InNamespace(f.namespace)))
		read <- mgr.GetClient().List(ctx, &corev1.ConfigMapList{})

		return reconcile.Result{}, nil
	})
	c, err := ctrlcontroller.New("own", mgr, ctrlcontroller.Options{Reconciler: own})
	require.NoError(t, err)
	require.NoError(t, c.Watch(oneRequest(reconcile.Request{})))

	f.launch(mgr.Start)
	f.eventually("a standby is ready", func() bool { return status(url) == http.StatusOK })
	require.NoError(t, receive(f, read, "it reads other kinds"))
	require.ErrorContains(t, receive(f, read, "it cannot read sharded kinds"), "does not work as a shard yet")

	f.configMapOf(f.namespace+"-0", "mine")
	require.NoError(t, p.stop())
	f.eventually("it takes the slot, and works", func() bool { return o.calls("mine") > 0 })
	require.NoError(t, o.failure())
}

// The watches of other kinds start before the shard has its objects. A function that maps their events to objects of
// the shard waits for these.
func TestEventsBeforeTheClaimAreMappedAfterIt(t *testing.T) {
	f := newFixture(t)
	require.NoError(t, f.admin.Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "for-all"}}))
	f.configMapOf(f.namespace+"-0", "mine")

	p := f.working(f.slotOptions("pod-a", 1))

	o, served := newOperator(), f.options()
	served.Cache.DefaultNamespaces = map[string]cache.Config{f.namespace: {}}
	mgr, err := NewManager(f.config, served, f.slotOptions("pod-b", 1))
	require.NoError(t, err)

	o.client = mgr.GetClient()
	mapped := make(chan error, 1)
	all := func(ctx context.Context, _ client.Object) []reconcile.Request {
		list := &corev1.ConfigMapList{}
		err := o.client.List(ctx, list)

		if len(list.Items) != 1 {
			err = errors.Join(err, fmt.Errorf("%d objects", len(list.Items)))
		}
		mapped <- err

		return nil
	}
	own, err := cache.New(f.config, cache.Options{DefaultNamespaces: served.Cache.DefaultNamespaces})
	require.NoError(t, err)
	require.NoError(t, mgr.Add(own))
	require.NoError(t, ctrl.NewControllerManagedBy(mgr).Named("maps").For(&corev1.ConfigMap{}).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(all)).
		// a cache of its own
		WatchesRawSource(source.Kind(own, &corev1.ServiceAccount{},
			&handler.TypedEnqueueRequestForObject[*corev1.ServiceAccount]{})).
		Complete(o))
	f.launch(mgr.Start)
	f.eventually("it waits for the slot", func() bool { return f.standby("pod-b") != nil })
	require.Empty(t, mapped)

	require.NoError(t, p.stop())
	require.NoError(t, receive(f, mapped, "the event is mapped"))
}

// The services assign nothing to a shard that would not see it.
func TestLeaseNamesTheNamespacesOfTheManager(t *testing.T) {
	f := newFixture(t)
	f.cache.DefaultNamespaces = map[string]cache.Config{f.namespace: {}, "default": {}}
	f.working(f.named("shard-0"))

	lease := f.leaseOf("shard-0")
	require.Equal(t, "default,"+f.namespace, contract.Namespaces(lease.Annotations, lease.Spec.RenewTime.Time))
}

// A version that may not read one more kind takes nothing: the shard that has the objects keeps them.
func TestVersionThatCannotFillItsCachesTakesNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		kinds  Kinds
		watch  client.Object
		denied string
	}{
		"a sharded kind": {kinds: Kinds{Main(&corev1.ConfigMap{}), Controlled(&corev1.Secret{})},
			denied: "secrets"},
		"another kind": {kinds: Kinds{Main(&corev1.ConfigMap{})}, watch: &corev1.Secret{}, denied: "secrets"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			role := f.grantAll(
				rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"*"}},
				rbacv1.PolicyRule{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"*"}})
			f.config.Impersonate.UserName = f.namespace
			w := f.wire()

			options := f.slotOptions("pod-a", 1)
			options.Kinds = tc.kinds
			served, url := f.served()
			mgr, err := NewManager(f.config, served, options)
			require.NoError(t, err)

			o := newOperator()
			o.client = mgr.GetClient()
			b := ctrl.NewControllerManagedBy(mgr).Named("maps").For(&corev1.ConfigMap{})

			if tc.watch != nil {
				b = b.Watches(tc.watch, &handler.EnqueueRequestForObject{}, builder.OnlyMetadata)
			}

			require.NoError(t, b.Complete(o))
			f.launch(mgr.Start)

			f.eventually("it answers, and is not ready",
				func() bool { return status(url) == http.StatusInternalServerError })
			f.eventually("it has tried", func() bool { return w.count("403 * "+tc.denied) > 1 })
			require.Empty(t, f.leaseOf(f.namespace+"-0").Name, "it takes nothing")

			role.Rules = append(role.Rules,
				rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{tc.denied}, Verbs: []string{"*"}})
			require.NoError(t, f.admin.Update(t.Context(), role))
			f.eventually("it works as soon as it may", func() bool { return status(url) == http.StatusOK })
		})
	}
}

// An API server sends all calls over one connection. A Pod that was told to stop ends it with an answer, because a call
// that is on its way when the server closes the connection would fail.
func TestAStoppingPodEndsConnectionsOfWebhooksWithAnAnswer(t *testing.T) {
	f := newFixture(t)
	certs, _ := f.certificate()
	pod := f.webhookPod(certs, "pod")
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true, //nolint:gosec // the certificate is not what is tested
	}

	t.Cleanup(transport.CloseIdleConnections)

	// call reports whether a call of the webhook used the connection of the call before it.
	call := func() (reused bool) {
		trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}

		request, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodPost,
			"https://"+pod.address+"/validate--v1-configmap", strings.NewReader("{}"))
		require.NoError(t, err)
		response, err := transport.RoundTrip(request)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())

		return reused
	}

	require.False(t, call())
	require.True(t, call())

	pod.cancel()
	f.eventually("the Pod was told to stop", func() bool { return status(pod.probe) != http.StatusOK })
	require.True(t, call())
	f.eventually("the answer ended the connection", func() bool { return !call() })
	require.NoError(t, pod.stop())
}

// permissive is a validating webhook of creations.
type permissive struct {
	admission.Validator[*corev1.ConfigMap]
}

func (permissive) ValidateCreate(context.Context, *corev1.ConfigMap) (admission.Warnings, error) {
	return nil, nil
}

// replica is a replica of an operator with a webhook.
type replica struct {
	*process

	address, probe string // of the webhook, and of the check of readiness
}

// service forwards connections to the Pods that were ready when it last looked, as a Service does.
type service struct {
	listener net.Listener
	done     sync.WaitGroup

	mu   sync.Mutex
	pods []replica
	next int
	good []replica
}

func newService(f *fixture) *service {
	f.Helper()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(f, err)

	s := &service{listener: listener}
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

		s.good = slices.DeleteFunc(slices.Clone(s.pods), func(r replica) bool { return status(r.probe) != http.StatusOK })

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

	address := s.good[s.next%len(s.good)].address
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

// webhookPod runs a replica until it is ready.
func (f *fixture) webhookPod(certs, name string) replica {
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
	mgr, err := NewManager(f.config, o, f.slotOptions(name, 2))
	require.NoError(f, err)
	require.NoError(f, newOperator().SetupWithManager(mgr, "maps"))
	require.NoError(f, ctrl.NewWebhookManagedBy(mgr, &corev1.ConfigMap{}).WithValidator(permissive{}).Complete())

	r := replica{f.launch(mgr.Start), address, probe}
	f.eventually("the Pod is ready", func() bool { return status(probe) == http.StatusOK })

	return r
}

func (s *service) add(r replica) { locked(&s.mu, func() { s.pods = append(s.pods, r) }) }

// certificate returns a directory with a certificate for webhooks, and the certificate, which has signed itself.
func (f *fixture) certificate() (dir string, ca []byte) {
	dir = f.TempDir()
	ca, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	require.NoError(f, err)
	require.NoError(f, os.WriteFile(filepath.Join(dir, "tls.crt"), ca, 0o600))
	require.NoError(f, os.WriteFile(filepath.Join(dir, "tls.key"), key, 0o600))

	return dir, ca
}

// Three replicas, one of which waits for a slot, serve a webhook without which nothing can be created. A rolling update
// replaces all of them.
func TestWebhooksAreServedByAllReplicasAllTheTime(t *testing.T) {
	f := newFixture(t)
	certs, ca := f.certificate()
	s := newService(f)

	var pods []replica
	for i := range 3 {
		pods = append(pods, f.webhookPod(certs, fmt.Sprintf("pod-%d", i)))
		s.add(pods[i])
	}

	f.eventually("a standby is an endpoint, too", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()

		return len(s.good) == 3
	})

	config := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: f.namespace},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "maps.example.com", AdmissionReviewVersions: []string{"v1"},
			SideEffects:   new(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy: new(admissionregistrationv1.Fail), TimeoutSeconds: new(int32(10)),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: new("https://" + s.listener.Addr().String() +
				"/validate--v1-configmap"), CABundle: ca},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: f.namespace}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
					Resources: []string{"configmaps"}},
			}},
		}},
	}
	require.NoError(t, f.admin.Create(t.Context(), config))
	t.Cleanup(func() { require.NoError(t, f.admin.Delete(context.Background(), config)) }) //nolint:usetesting // the test's context has ended

	create := func() error {
		return f.admin.Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, GenerateName: "user-"}})
	}
	f.eventually("the webhook is in force", func() bool { return create() == nil })

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

	for i, pod := range pods {
		s.add(f.webhookPod(certs, fmt.Sprintf("next-%d", i)))
		require.NoError(t, pod.stop())
	}

	cancel()
	<-user
	t.Logf("%d objects created", created)
	require.Empty(t, refused)
	require.Positive(t, created)
}
