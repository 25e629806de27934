package rebalancer

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
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

// reviews serves a webhook that allows everything. answer completes each of its answers.
func (w *testRing) reviews(answer func(*admissionv1.AdmissionResponse)) *httptest.Server {
	server := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		review := admissionv1.AdmissionReview{}
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}

		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		review.Request = nil

		answer(review.Response)

		_ = json.NewEncoder(rw).Encode(review)
	}))
	w.Cleanup(server.Close)

	return server
}

func certificateOf(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

// updatesOf returns the rules of a webhook that is called for updates of a resource.
func updatesOf(group, resource string) []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource},
		},
	}}
}

// validate registers a webhook that has to admit each update of a ConfigMap in the ring's namespace, until the test
// ends or callOff is called.
func (w *testRing) validate(name string, at admissionregistrationv1.WebhookClientConfig) (callOff func()) {
	w.Helper()

	config := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: w.Namespace},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name:                    name,
			ClientConfig:            at,
			AdmissionReviewVersions: []string{"v1"},
			SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy:           new(admissionregistrationv1.Fail),
			TimeoutSeconds:          new(int32(10)),
			NamespaceSelector:       w.Ring.Spec.NamespaceSelector,
			Rules:                   updatesOf("", "configmaps"),
		}},
	}
	require.NoError(w, w.Client.Create(w.Context(), config))

	callOff = func() { require.NoError(w, client.IgnoreNotFound(w.Client.Delete(context.Background(), config))) }
	w.Cleanup(callOff)

	return callOff
}

// operatorWebhook registers a webhook that admits each update of a ConfigMap in the ring's namespace, with the given
// number of endpoints.
func (w *testRing) operatorWebhook(of int64) *endpoints {
	w.Helper()

	server := w.reviews(func(*admissionv1.AdmissionResponse) {})

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

	w.validate("operator.example.clusterring.dev", admissionregistrationv1.WebhookClientConfig{
		URL: new("https://" + listener.Addr().String() + "/validate"), CABundle: certificateOf(server),
	})

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

// newQuickRing returns a ring of two main resources, for a test that writes as fast as it can.
func newQuickRing(t *testing.T) *testRing {
	t.Helper()

	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = []v1alpha1.RingResource{{Resource: "configmaps"}, {Resource: "secrets"}}
	})
	config := rest.CopyConfig(w.Plane.Config)
	config.QPS = -1

	var err error

	w.Client, err = client.New(config, client.Options{Scheme: w.Client.Scheme()})
	require.NoError(t, err)

	return w
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

	w := &operator{testRing: newQuickRing(t)}
	w.Join("a", "b")

	for _, name := range w.NamesOf("b", objects) {
		w.objects = append(w.objects, w.Main(name, "b"))
	}

	w.hook = w.operatorWebhook(2)

	return w
}

// leave gives b its objects, with connections to all endpoints, and starts the rebalancer. Then b leaves, and some of
// the endpoints are gone. Its objects may be taken for a minute.
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
		require.NoError(w, w.Client.List(w.Context(), list, client.InNamespace(w.Namespace),
			client.MatchingLabels(w.Labels("b"))))

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

// A shard of an operator that serves the operator's own webhook dies, and stays among the endpoints of the webhook for
// a while. Its objects move in at most twice the usual time, and other resources do not wait.
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

// While no endpoint of the webhook answers, objects of other resources move as usual. When an endpoint is back, so do
// its objects.
func TestOperatorsWebhookWithoutEndpoints(t *testing.T) {
	w := newOperator(t, 100)
	_, left := w.leave(2)

	require.Eventually(t, func() bool { return w.hook.hanging.Load() >= 16 }, 20*time.Second, time.Millisecond,
		"all workers should wait")

	for range 5 {
		took := w.other()
		t.Logf("another resource: %v", took)
		require.Less(t, took, 3*time.Second)
	}

	require.Contains(t, w.Assigned(v1alpha1.ReasonAssignmentFailed).Message,
		"writes of configmaps have not been answered since")
	w.hook.dead.Store(0)
	w.moved(left)
	w.AtRest()
}

// hangingRing returns a ring for whose ConfigMaps each update waits for a webhook that never answers.
func hangingRing(t *testing.T) *testRing {
	t.Helper()

	w := newQuickRing(t)

	w.Join("a")
	w.operatorWebhook(1).dead.Store(1)

	return w
}

// Four rings have 5,000 objects whose writes hang. Objects of another resource are assigned within a second, and each
// ring says what hangs, since when, and why, for as long as that lasts.
func TestHangingResourceHoldsUpNoOther(t *testing.T) {
	var all []*testRing
	for range 4 {
		all = append(all, hangingRing(t))
	}

	all[0].start()

	for _, w := range all {
		w.AtRest()
	}

	began := realTime.Now()

	for _, w := range all {
		w.Main("hanging", "")
	}

	says := func(w *testRing, objects int, why string) {
		t.Helper()

		said := ""

		require.Eventually(t, func() bool {
			said = w.Assigned(v1alpha1.ReasonAssignmentFailed).Message
			return strings.HasSuffix(said, fmt.Sprintf("; %d objects wait", objects)) && strings.Contains(said, why)
		}, 40*time.Second, 20*time.Millisecond, "%s", &said)
		require.Regexp(t, `; writes of configmaps have not been answered since \d\d:\d\d:\d\d: `, said)
		t.Logf("%v: %s", realTime.Since(began).Round(time.Millisecond), said)
	}

	for _, w := range all {
		says(w, 1, "")
	}

	require.Less(t, realTime.Since(began), 10*time.Second)

	const each = 1250

	var creating errgroup.Group

	for _, w := range all {
		creating.Go(func() error {
			for i := range each - 1 {
				cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: fmt.Sprintf("hanging-%d", i)}}
				if err := w.Client.Create(t.Context(), cm); err != nil {
					return err
				}
			}

			return nil
		})
	}

	for i := range 100 {
		w := all[i%len(all)]
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: fmt.Sprintf("other-%d", i)}}
		require.NoError(t, w.Client.Create(t.Context(), s))

		created := realTime.Now()

		w.Eventually(ringtest.Placed{Shard: "a"}, s)
		require.Less(t, realTime.Since(created), time.Second)
	}

	require.NoError(t, creating.Wait())

	for _, w := range all { // it lasts, through attempts that take longer and longer
		says(w, each, "operator.example.clusterring.dev")
	}
}

// refuseUpdates makes the API server refuse each update of a ConfigMap of the namespace, until callOff is called. The
// same happens while the validating webhook of a resource is down.
func (w *testRing) refuseUpdates() (callOff func()) {
	w.Helper()

	nowhere := "https://127.0.0.1:1/"
	callOff = w.validate("away.example.clusterring.dev", admissionregistrationv1.WebhookClientConfig{URL: &nowhere})

	probe := w.Main("probe", "")
	require.Eventually(w, func() bool {
		return apierrors.IsInternalError(w.Client.Update(w.Context(), probe, client.DryRunAll))
	}, 20*time.Second, 10*time.Millisecond, "the API server should use the webhook")

	return callOff
}

// labelled returns the ConfigMaps that carry the ring's label.
func (w *testRing) labelled() []corev1.ConfigMap {
	w.Helper()

	var list corev1.ConfigMapList
	require.NoError(w, w.Client.List(w.Context(), &list, client.HasLabels{w.Ring.LabelKeys().Shard}))

	return list.Items
}

// While objects cannot be drained, the ring reports this and the reason, and is not converged. When they can be
// drained, all of them are.
func TestNothingIsForgottenWhileDrainsFail(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")

	var misplaced []client.Object
	for _, name := range w.NamesOf("b", 20) {
		misplaced = append(misplaced, w.Main(name, "a"))
	}

	callOff := w.refuseUpdates()
	w.start()

	w.says(v1alpha1.ReasonMoving, "20 misplaced", "failed calling webhook")
	require.Eventually(t, func() bool { return w.failures() >= 80 }, 20*time.Second, 10*time.Millisecond,
		"all drains should be retried")
	w.Assigned(v1alpha1.ReasonMoving)
	require.Empty(t, w.Ring.Status.Assignment.Fingerprint,
		"otherwise children of misplaced objects would be assigned as if their owners were in place")

	callOff()
	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, misplaced...)

	for _, o := range misplaced {
		w.Acknowledge(o)
	}

	w.Eventually(ringtest.Placed{Shard: "b"}, misplaced...)
	w.AtRest()
}

// failures returns how many attempts to move an object of the ring have failed.
func (w *testRing) failures() (n float64) {
	w.Helper()

	families, err := metrics.Registry.Gather()
	require.NoError(w, err)

	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "clusterring_rebalancer_failures_total" && m.GetLabel()[0].GetValue() == w.Ring.Name {
				n += m.GetCounter().GetValue()
			}
		}
	}

	return n
}

// A deleted ring stays while any object carries its labels, and reports what it waits for.
func TestDeletedRingWaitsForDrainsThatFail(t *testing.T) {
	w := newTestRing(t)
	w.Join("a")

	var all []client.Object
	for _, name := range w.NamesOf("a", 20) {
		all = append(all, w.Main(name, "a"))
	}

	w.start()
	w.AtRest()

	callOff := w.refuseUpdates()
	w.delete()
	w.says(v1alpha1.ReasonDeleting, "failed calling webhook")
	require.Len(t, w.labelled(), 20)

	callOff()
	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, all...)

	for _, o := range all {
		require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring), "the ring should wait")
		w.Acknowledge(o)
	}

	w.gone()
	require.Empty(t, w.labelled())
}

// A child of an owner whose resource has left the ring waits for nothing, although the resource of the child is still
// in the ring.
func TestChildOfAReleasedOwnerIsNotWaitedFor(t *testing.T) {
	w := newTestRing(t, withClasses)
	w.Join("a")

	released, last := w.Main("released", "a"), w.Main("last", "a")
	class := w.class(w.Namespace, w.Labels("a"))

	w.start()
	w.AtRest()

	w.edit(func(s *v1alpha1.ClusterRingSpec) {
		s.Resources = s.Resources[1:]
		s.Resources[0].ControlledResources = []v1alpha1.ControlledResource{{Resource: "secrets"}}
	})
	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, released, last)
	w.Acknowledge(released)
	w.Eventually(ringtest.Placed{}, released)

	child := w.Child(released, "")

	// When this object has its shard, the other one has been seen.
	other := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "other"}}
	require.NoError(t, controllerutil.SetControllerReference(class, other, w.Client.Scheme()))
	require.NoError(t, w.Client.Create(t.Context(), other))
	w.Eventually(ringtest.Placed{Shard: "a"}, other)

	w.Acknowledge(last)
	w.Assigned(v1alpha1.ReasonAllAssigned)
	require.Equal(t, ringtest.Placed{}, w.Placed(child))

	require.Eventually(t, func() bool {
		a := w.assignment()

		return a.Fingerprint != "" && len(a.Resources) == 1 && a.Resources[0].Resource == "ingressclasses"
	}, 20*time.Second, 20*time.Millisecond, "the status should not remember it: %+v", w.Ring.Status.Assignment)
}

var gadgets = schema.GroupVersionKind{Group: "mutated.example.com", Version: "v1", Kind: "Gadget"}

// newGadgetRing returns a ring whose main objects are gadgets.
func newGadgetRing(t *testing.T) *testRing {
	t.Helper()

	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources[0].Group, r.Spec.Resources[0].Resource = gadgets.Group, "gadgets"
	})
	require.NoError(t, w.Plane.Install(t.Context(), "tools/lab/policies/testdata/gadgets.yaml"))

	return w
}

// defaulter registers a webhook that sets a field of spec and an annotation of each gadget that somebody updates, as
// the webhooks of many operators do, and waits until the API server calls it, and evaluates the policy that changes
// gadgets.
func (w *testRing) defaulter(probe *unstructured.Unstructured, field, value string) {
	w.Helper()

	var writes atomic.Int64

	server := w.reviews(func(r *admissionv1.AdmissionResponse) {
		r.PatchType, r.Patch = new(admissionv1.PatchTypeJSONPatch), fmt.Appendf(nil, `[
			{"op":"add","path":"/spec/%s","value":%s},
			{"op":"add","path":"/metadata/annotations/example.org~1writes","value":"%d"}
		]`, field, value, writes.Add(1))
	})
	config := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: w.Ring.Name},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "defaulter.mutated.example.com", AdmissionReviewVersions: []string{"v1"},
			SideEffects: new(admissionregistrationv1.SideEffectClassNone),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: new(server.URL), CABundle: certificateOf(server),
			},
			NamespaceSelector: w.Ring.Spec.NamespaceSelector,
			Rules:             updatesOf(gadgets.Group, "gadgets"),
		}},
	}
	require.NoError(w, w.Client.Create(w.Context(), config))
	w.Cleanup(func() { _ = w.Client.Delete(context.WithoutCancel(w.Context()), config) })

	require.Eventually(w, func() bool {
		written := probe.DeepCopy()
		patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"theme":"dark"}}`))
		require.NoError(w, w.Client.Patch(w.Context(), written, patch, client.DryRunAll))

		return written.GetAnnotations()["example.org/writes"] != "" &&
			written.GetAnnotations()["example.org/last-modified-by"] != ""
	}, 30*time.Second, 10*time.Millisecond)
}

// gadget creates a gadget of the shard that its key belongs to.
func (w *testRing) gadget(name string) *unstructured.Unstructured {
	w.Helper()

	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"theme": "light"}}}
	u.SetGroupVersionKind(gadgets)
	u.SetNamespace(w.Namespace)
	u.SetName(name)
	u.SetLabels(w.Labels(w.ownerOf(name)))
	u.SetAnnotations(map[string]string{"note": "n"})
	// The policy that changes gadgets fails until the API server knows their type.
	require.Eventually(w, func() bool { return w.Client.Create(w.Context(), u) == nil }, time.Minute, 10*time.Millisecond)

	return u
}

func (w *testRing) ownerOf(gadget string) string {
	w.Helper()

	shard, ok := w.View().Owner(key.Key{Group: gadgets.Group, Kind: gadgets.Kind, Namespace: w.Namespace, Name: gadget})
	require.True(w, ok, "no shard is available")

	return shard
}

// Whatever admission changes in the writes of the rebalancer, objects move.
func TestObjectsMoveThatAdmissionChanges(t *testing.T) {
	w := newGadgetRing(t)
	w.Join("a", "b", "c")

	all := make([]client.Object, 20)
	for i := range all {
		all[i] = w.gadget(fmt.Sprint("gadget-", i))
	}

	w.defaulter(all[0].(*unstructured.Unstructured), "map", `{"defaulted":"true"}`)

	// The objects of a dead shard.
	w.release("c")
	w.start()

	placed := func() {
		t.Helper()

		for _, o := range all {
			w.Eventually(ringtest.Placed{Shard: w.ownerOf(o.GetName())}, o)
		}
	}
	placed()

	// The share of a shard that joins.
	moving := func(acknowledge bool) (n int) {
		t.Helper()

		for _, o := range all {
			if shard := o.GetLabels()[w.Ring.LabelKeys().Shard]; w.ownerOf(o.GetName()) != shard {
				n++

				if w.Eventually(ringtest.Placed{Shard: shard, Drain: true}, o); acknowledge {
					w.Acknowledge(o)
				}
			}
		}

		return n
	}

	w.Join("d")
	require.NotZero(t, moving(true))
	placed()

	// Drains that are no longer wanted.
	w.Join("e")
	require.NotZero(t, moving(false))
	w.release("e")
	placed()

	for _, o := range all {
		spec := o.(*unstructured.Unstructured).Object["spec"].(map[string]any)
		require.Equal(t, "light", spec["theme"])
	}

	// Without the ring, nothing of ours remains but the empty handover.
	w.delete()

	for _, shard := range []string{"a", "b", "d"} {
		w.release(shard)
	}

	for _, o := range all {
		require.Eventually(t, func() bool { // a removal by server-side apply takes two writes
			require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o))
			return len(o.GetLabels()) == 0
		}, time.Minute, 20*time.Millisecond)
	}
}

// The condition says which field was changed, and what may have done it.
func TestConditionNamesWhatAdmissionChanges(t *testing.T) {
	w := newGadgetRing(t)
	w.Join("a", "b")

	gadget := w.gadget("gadget")
	w.defaulter(gadget, "hosts", "[]") // the policy about the rebalancer cannot tell who adds an empty list

	require.NoError(t, w.Shards[w.ownerOf("gadget")].Release(t.Context()))
	w.start()

	message := w.Assigned(v1alpha1.ReasonAssignmentFailed).Message
	require.Contains(t, message, "the rebalancer may not change spec;")
	require.Contains(t, message,
		"updates of resources of the ring may be changed by: webhook defaulter.mutated.example.com of "+w.Ring.Name+
			", policy stamp.mutated.example.com")
}

// An owner whose annotations leave no room for that of the hand-over moves without it, after what follows it.
func TestOwnerWithFullAnnotations(t *testing.T) {
	for what, leave := range map[string]func(*testRing, *corev1.ConfigMap){
		"its shard releases it": func(w *testRing, owner *corev1.ConfigMap) {
			w.Eventually(ringtest.Placed{Shard: "b", Drain: true}, owner)
			w.Acknowledge(owner)
		},
		"its shard is dead": func(w *testRing, _ *corev1.ConfigMap) {
			require.NoError(w, w.Shards["b"].Release(w.Context()))
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newTestRing(t)
			w.Join("a", "b")

			annotations := map[string]string{"full": strings.Repeat("x", validation.TotalAnnotationSizeLimitB-60)}
			owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				Namespace: w.Namespace, Name: w.NamesOf("a", 1)[0], Labels: w.Labels("b"), Annotations: annotations,
			}}
			require.NoError(t, w.Client.Create(t.Context(), owner))
			child := w.Child(owner, "b")

			w.start()
			leave(w, owner)
			w.Eventually(ringtest.Placed{Shard: "a"}, child, owner)
			require.Equal(t, annotations, owner.Annotations)
			w.AtRest()
		})
	}
}
