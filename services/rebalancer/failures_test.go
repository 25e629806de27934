package rebalancer

import (
	"cmp"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

var realTime clock.RealClock

// endpoints are the endpoints of a webhook, behind one address: each connection goes to the next endpoint.
type endpoints struct {
	net.Listener

	of       int64
	accepted atomic.Int64
	// dead is how many of the endpoints are gone. Connections to them stay open, and carry nothing.
	dead atomic.Int64
	// hanging counts the connections to dead endpoints that were used.
	hanging atomic.Int64
}

func (e *endpoints) Accept() (net.Conn, error) {
	c, err := e.Listener.Accept()

	return &connection{Conn: c, to: e, endpoint: (e.accepted.Add(1) - 1) % e.of}, err
}

// connection is a connection to one of the endpoints.
type connection struct {
	net.Conn

	to       *endpoints
	endpoint int64
}

func (c *connection) Read(b []byte) (n int, err error) {
	if n, err = c.Conn.Read(b); err == nil && c.endpoint < c.to.dead.Load() {
		c.to.hanging.Add(1)

		_, err = io.Copy(io.Discard, c.Conn) // until the API server closes it, or the test ends

		return 0, cmp.Or(err, io.EOF)
	}

	return n, err
}

// reviews serves a webhook that allows everything, with the given number of endpoints. answer completes each of its
// answers.
func (w *testRing) reviews(of int64, answer func(*admissionv1.AdmissionResponse)) (*httptest.Server, *endpoints) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
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
	e := &endpoints{Listener: server.Listener, of: of}
	server.Listener = e
	server.StartTLS()
	w.Cleanup(server.Close)

	return server, e
}

// at returns where the API server finds a webhook.
func at(server *httptest.Server) admissionregistrationv1.WebhookClientConfig {
	return admissionregistrationv1.WebhookClientConfig{
		URL:      new(server.URL + "/validate"),
		CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}
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

// operatorWebhook registers a webhook that has to admit each update of a ConfigMap in the ring's namespace, with the
// given number of endpoints, until the test ends.
func (w *testRing) operatorWebhook(of int64) *endpoints {
	w.Helper()

	server, e := w.reviews(of, func(*admissionv1.AdmissionResponse) {})
	config := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: w.Namespace},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "operator.example.clusterring.dev", ClientConfig: at(server), AdmissionReviewVersions: []string{"v1"},
			SideEffects:       new(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy:     new(admissionregistrationv1.Fail),
			TimeoutSeconds:    new(int32(10)),
			NamespaceSelector: w.Ring.Spec.NamespaceSelector,
			Rules:             updatesOf("", "configmaps"),
		}},
	}
	require.NoError(w, w.Client.Create(w.Context(), config))
	w.Cleanup(func() { require.NoError(w, w.Client.Delete(context.Background(), config)) })

	return e
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

// other returns how long an object of another resource waits for its shard.
func (w *testRing) other(name string) time.Duration {
	w.Helper()

	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name}}
	require.NoError(w, w.Client.Create(w.Context(), s))

	began := realTime.Now()

	w.Eventually(ringtest.Placed{Shard: "a"}, s)

	return realTime.Since(began)
}

// A shard of an operator that serves the operator's own webhook dies, and stays among the endpoints of the webhook for
// a while. Its objects move in at most twice the usual time, and other resources do not wait.
func TestDeadEndpointOfOperatorsWebhook(t *testing.T) {
	w := newQuickRing(t)
	w.Join("a", "b")

	var objects []*corev1.ConfigMap
	for _, name := range w.NamesOf("b", 1500) {
		objects = append(objects, w.Main(name, "b"))
	}

	hook := w.operatorWebhook(2)
	ofB, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": w.Labels("b")}})
	require.NoError(t, err)

	// A round gives b its objects, with connections to all endpoints, and starts the rebalancer. Then b leaves, and some
	// of the endpoints are gone. Its objects may be taken for a minute.
	round := func(dead int64) (took, other time.Duration) {
		hook.dead.Store(0)
		w.Join("b")

		var back errgroup.Group

		back.SetLimit(16)

		for _, cm := range objects {
			back.Go(func() error { return w.Client.Patch(t.Context(), cm, client.RawPatch(types.MergePatchType, ofB)) })
		}

		require.NoError(t, back.Wait())

		lease, err := w.Shards["b"].Lease(t.Context())
		require.NoError(t, err)
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, contract.AnnotationHoldOff, "60s")
		require.NoError(t, w.Client.Update(t.Context(), lease))

		defer w.start()()

		require.NoError(t, w.Client.DeleteAllOf(t.Context(), &corev1.Secret{}, client.InNamespace(w.Namespace)))
		w.AtRest()
		hook.dead.Store(dead)

		left := realTime.Now()

		w.release("b")

		other = w.other("other")

		require.Eventually(t, func() bool {
			list := &corev1.ConfigMapList{}
			require.NoError(t, w.Client.List(t.Context(), list, client.InNamespace(w.Namespace),
				client.MatchingLabels(w.Labels("b"))))

			return len(list.Items) == 0
		}, 2*time.Minute, 20*time.Millisecond)

		return realTime.Since(left), other
	}

	before, _ := round(0)
	took, other := round(1)
	hung := hook.hanging.Load()
	after, _ := round(0)

	t.Logf("%v and %v as usual, %v with a dead endpoint; another resource %v", before, after, took, other)
	require.Positive(t, hung)
	require.LessOrEqual(t, took, 2*max(before, after)) // the machine may have other work
	require.Less(t, other, 2*time.Second)
}

// Four rings have 5,000 objects whose writes hang, because no endpoint of a webhook answers. Objects of another
// resource are assigned within a second, and each ring says what hangs, since when, and why, for as long as that lasts.
// When an endpoint is back, the objects move.
func TestHangingResourceHoldsUpNoOther(t *testing.T) {
	const each = 1250

	all, hooks := make([]*testRing, 4), make([]*endpoints, 4)
	for i := range all {
		all[i] = newQuickRing(t)
		all[i].Join("a")
		hooks[i] = all[i].operatorWebhook(1)
		hooks[i].dead.Store(1)
	}

	all[0].start()

	for _, w := range all {
		w.AtRest()
	}

	began := realTime.Now()

	for _, w := range all {
		w.Main("hanging", "")
	}

	says := func(objects int, why string) {
		t.Helper()

		for _, w := range all {
			said := w.says(v1alpha1.ReasonAssignmentFailed, fmt.Sprintf("; %d objects wait", objects), why)
			require.Regexp(t, `; writes of configmaps have not been answered since \d\d:\d\d:\d\d: `, said)
		}
	}
	says(1, "")
	require.Less(t, realTime.Since(began), 10*time.Second)

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
		require.Less(t, all[i%len(all)].other(fmt.Sprintf("other-%d", i)), time.Second)
	}

	require.NoError(t, creating.Wait())
	says(each, "operator.example.clusterring.dev") // it lasts, through attempts that take longer and longer

	for i, w := range all {
		hooks[i].dead.Store(0)
		require.Eventually(t, func() bool { return w.assignment().Fingerprint != "" }, 2*time.Minute, 100*time.Millisecond)
	}
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
	other := child.DeepCopy()
	other.ObjectMeta = metav1.ObjectMeta{Namespace: w.Namespace, Name: "other"}
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
func (w *testRing) defaulter(probe client.Object, field, value string) {
	w.Helper()

	var writes atomic.Int64

	server, _ := w.reviews(1, func(r *admissionv1.AdmissionResponse) {
		r.PatchType, r.Patch = new(admissionv1.PatchTypeJSONPatch), fmt.Appendf(nil, `[
			{"op":"add","path":"/spec/%s","value":%s},
			{"op":"add","path":"/metadata/annotations/example.org~1writes","value":"%d"}
		]`, field, value, writes.Add(1))
	})
	config := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: w.Ring.Name},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "defaulter.mutated.example.com", AdmissionReviewVersions: []string{"v1"}, ClientConfig: at(server),
			SideEffects:       new(admissionregistrationv1.SideEffectClassNone),
			NamespaceSelector: w.Ring.Spec.NamespaceSelector,
			Rules:             updatesOf(gadgets.Group, "gadgets"),
		}},
	}
	require.NoError(w, w.Client.Create(w.Context(), config))
	w.Cleanup(func() { _ = w.Client.Delete(context.WithoutCancel(w.Context()), config) })

	require.Eventually(w, func() bool {
		patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"theme":"dark"}}`))
		written := probe.DeepCopyObject().(client.Object) //nolint:forcetypeassert // it is one
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

	return w.owners(named(gadgets.Group, gadgets.Kind, w.Namespace))(gadget)
}

// Whatever admission changes in the writes of the rebalancer, objects move.
func TestObjectsMoveThatAdmissionChanges(t *testing.T) {
	w := newGadgetRing(t)
	w.Join("a", "b", "c")

	all := make([]client.Object, 20)
	for i := range all {
		all[i] = w.gadget(fmt.Sprint("gadget-", i))
	}

	w.defaulter(all[0], "map", `{"defaulted":"true"}`)

	placed := func() {
		t.Helper()

		for _, o := range all {
			w.Eventually(ringtest.Placed{Shard: w.ownerOf(o.GetName())}, o)
		}
	}
	drained := func(next string) (moving []client.Object) {
		t.Helper()
		w.Join(next)

		for _, o := range all {
			if shard := o.GetLabels()[w.Ring.LabelKeys().Shard]; w.ownerOf(o.GetName()) != shard {
				w.Eventually(ringtest.Placed{Shard: shard, Drain: true}, o)

				moving = append(moving, o)
			}
		}

		require.NotEmpty(t, moving)

		return moving
	}

	w.release("c") // the objects of a dead shard
	w.start()
	placed()

	for _, o := range drained("d") {
		w.Acknowledge(o)
	}

	placed()
	drained("e")
	w.release("e") // nobody wants these drains anymore
	placed()

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

		theme, _, _ := unstructured.NestedString(o.(*unstructured.Unstructured).Object, "spec", "theme")
		require.Equal(t, "light", theme)
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
