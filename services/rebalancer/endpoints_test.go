package rebalancer

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

var realTime clock.RealClock

// endpoints are the endpoints of a webhook, behind one address: each connection goes to the next endpoint.
type endpoints struct {
	net.Listener

	behind   string
	of       int64
	accepted atomic.Int64
	// dead is how many of the endpoints are gone. Connections to them stay open, and carry nothing.
	dead atomic.Int64
	// hanging counts the connections to dead endpoints that were used.
	hanging atomic.Int64
	ctx     context.Context //nolint:containedctx // ends with the test
	all     sync.WaitGroup
}

// operatorWebhook registers a webhook that admits each update of a ConfigMap in the ring's namespace, with the given number of endpoints.
func (w *testRing) operatorWebhook(of int64) *endpoints {
	w.Helper()

	server := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		review := admissionv1.AdmissionReview{}
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}

		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		review.Request = nil
		_ = json.NewEncoder(rw).Encode(review)
	}))
	w.Cleanup(server.Close)

	listener, err := (&net.ListenConfig{}).Listen(w.Context(), "tcp", "127.0.0.1:0")
	require.NoError(w, err)

	ctx, end := context.WithCancel(w.Context())
	e := &endpoints{Listener: listener, behind: server.Listener.Addr().String(), of: of, ctx: ctx}
	e.all.Go(e.serve)
	w.Cleanup(func() {
		end()

		_ = listener.Close()

		e.all.Wait()
	})

	config := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: w.Namespace},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name:                    "operator.example.clusterring.dev",
			AdmissionReviewVersions: []string{"v1"},
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy:           ptr.To(admissionregistrationv1.Fail),
			TimeoutSeconds:          new(int32(10)),
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"ring": w.Namespace}},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL:      new("https://" + listener.Addr().String() + "/validate"),
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"*"}, Resources: []string{"configmaps"}},
			}},
		}},
	}
	require.NoError(w, w.Client.Create(w.Context(), config))
	w.Cleanup(func() { _ = w.Client.Delete(context.Background(), config) })

	return e
}

func (e *endpoints) serve() {
	for {
		conn, err := e.Accept()
		if err != nil {
			return
		}

		e.all.Go(func() { e.carry(conn, (e.accepted.Add(1)-1)%e.of) })
	}
}

// carry passes on what comes over a connection while its endpoint lives.
func (e *endpoints) carry(conn net.Conn, endpoint int64) {
	defer func() { _ = conn.Close() }()

	server, err := (&net.Dialer{}).DialContext(e.ctx, "tcp", e.behind)
	if err != nil {
		return
	}

	defer context.AfterFunc(e.ctx, func() { _, _ = conn.Close(), server.Close() })()
	defer func() { _ = server.Close() }()

	e.all.Go(func() {
		_, _ = io.Copy(conn, server)
		_ = conn.Close()
	})

	buf := make([]byte, 32<<10)

	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}

		if endpoint < e.dead.Load() {
			e.hanging.Add(1)

			_, _ = io.Copy(io.Discard, conn) // until the API server closes it, or the test ends

			return
		}

		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// operator is a ring of an operator that serves a webhook for its ConfigMaps. It has the shards a and b.
type operator struct {
	*testRing

	hook    *endpoints
	objects []*corev1.ConfigMap
	others  int
}

func newOperator(t *testing.T, objects int) *operator {
	t.Helper()

	w := &operator{testRing: newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = []v1alpha1.RingResource{{Resource: "configmaps"}, {Resource: "secrets"}}
	})}

	config := rest.CopyConfig(w.Plane.Config)
	config.QPS = -1

	var err error

	w.Client, err = client.New(config, client.Options{Scheme: w.Client.Scheme()})
	require.NoError(t, err)
	w.Join("a", "b")

	for _, name := range w.NamesOf("b", objects) {
		w.objects = append(w.objects, w.Main(name, "b"))
	}

	w.hook = w.operatorWebhook(2)

	return w
}

// leave gives b its objects, with connections to all endpoints, and starts the rebalancer. Then b leaves, and some of the endpoints are gone.
// Its objects may be taken for a minute.
func (w *operator) leave(dead int64) (stop func(), left time.Time) {
	w.Helper()

	w.hook.dead.Store(0)
	w.Join("b")

	label, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": w.Labels("b")}})
	require.NoError(w, err)

	var back errgroup.Group

	back.SetLimit(16)

	for _, cm := range w.objects {
		back.Go(func() error { return w.Client.Patch(w.Context(), cm, client.RawPatch(types.MergePatchType, label)) })
	}

	require.NoError(w, back.Wait())

	lease, err := w.Shards["b"].Lease(w.Context())
	require.NoError(w, err)
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, contract.AnnotationHoldOff, "60s")
	require.NoError(w, w.Client.Update(w.Context(), lease))

	stop = w.start()
	w.AtRest()
	w.hook.dead.Store(dead)

	left = realTime.Now()
	require.NoError(w, w.Shards["b"].Release(w.Context()))

	return stop, left
}

// moved waits until all objects of b have moved, and returns how long that took.
func (w *operator) moved(since time.Time) time.Duration {
	w.Helper()
	require.Eventually(w, func() bool {
		list := &corev1.ConfigMapList{}
		require.NoError(w, w.Client.List(w.Context(), list, client.InNamespace(w.Namespace), client.MatchingLabels(w.Labels("b"))))

		return len(list.Items) == 0
	}, 2*time.Minute, 20*time.Millisecond)

	return realTime.Since(since)
}

// other returns how long an object of another resource waits for its shard.
func (w *operator) other() time.Duration {
	w.Helper()

	w.others++
	began := realTime.Now()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "other-" + strconv.Itoa(w.others)}}
	require.NoError(w, w.Client.Create(w.Context(), s))
	w.Eventually(ringtest.Placed{Shard: "a"}, s)

	took := realTime.Since(began)

	require.NoError(w, w.Client.Delete(w.Context(), s)) // it may belong to b

	return took
}

// A shard of an operator that serves the operator's own webhook dies, and stays among the endpoints of the webhook for a while. Its objects move in
// at most twice the usual time, and other resources do not wait.
func TestDeadEndpointOfOperatorsWebhook(t *testing.T) {
	w := newOperator(t, 1500)
	round := func(dead int64) (took, other time.Duration) {
		stop, left := w.leave(dead)
		defer stop()

		other = w.other()

		return w.moved(left), other
	}

	before, _ := round(0)
	took, other := round(1)
	hung := w.hook.hanging.Load()
	after, _ := round(0)

	t.Logf("%v and %v as usual, %v with a dead endpoint; another resource %v", before, after, took, other)
	require.Positive(t, hung)
	require.LessOrEqual(t, took, 2*max(before, after)) // the machine may have other work
	require.Less(t, other, 2*time.Second)
}

// While no endpoint of the webhook answers, objects of other resources move as usual. When an endpoint is back, so do its objects.
func TestOperatorsWebhookWithoutEndpoints(t *testing.T) {
	w := newOperator(t, 100)
	_, left := w.leave(2)

	require.Eventually(t, func() bool { return w.hook.hanging.Load() >= 16 }, 20*time.Second, time.Millisecond, "all workers should wait")

	for range 5 {
		took := w.other()
		t.Logf("another resource: %v", took)
		require.Less(t, took, 3*time.Second)
	}

	require.Contains(t, w.Assigned(v1alpha1.ReasonAssignmentFailed).Message, "writes of configmaps have not been answered since")
	w.hook.dead.Store(0)
	w.moved(left)
	w.AtRest()
}
