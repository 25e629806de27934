package rebalancer

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

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

// defaulter registers a webhook that sets a field of spec and an annotation of each gadget that somebody updates, as the webhooks of many operators do,
// and waits until the API server calls it, and evaluates the policy that changes gadgets.
func (w *testRing) defaulter(probe *unstructured.Unstructured, field, value string) {
	w.Helper()

	var writes atomic.Int64

	server := httptest.NewTLSServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(in.Body).Decode(&review); err != nil {
			http.Error(out, err.Error(), http.StatusBadRequest)
			return
		}

		review.Response = &admissionv1.AdmissionResponse{
			UID: review.Request.UID, Allowed: true, PatchType: new(admissionv1.PatchTypeJSONPatch), Patch: fmt.Appendf(nil,
				`[{"op":"add","path":"/spec/%s","value":%s},{"op":"add","path":"/metadata/annotations/example.org~1writes","value":"%d"}]`, field, value, writes.Add(1)),
		}
		review.Request = nil
		_ = json.NewEncoder(out).Encode(review)
	}))
	w.Cleanup(server.Close)

	config := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: w.Ring.Name},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "defaulter.mutated.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: new(admissionregistrationv1.SideEffectClassNone),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: new(server.URL), CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			NamespaceSelector: w.Ring.Spec.NamespaceSelector,
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{gadgets.Group}, APIVersions: []string{"*"}, Resources: []string{"gadgets"}},
			}},
		}},
	}
	require.NoError(w, w.Client.Create(w.Context(), config))
	w.Cleanup(func() { _ = w.Client.Delete(context.WithoutCancel(w.Context()), config) })

	require.Eventually(w, func() bool {
		written := probe.DeepCopy()
		patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"theme":"dark"}}`))
		require.NoError(w, w.Client.Patch(w.Context(), written, patch, client.DryRunAll))

		return written.GetAnnotations()["example.org/writes"] != "" && written.GetAnnotations()["example.org/last-modified-by"] != ""
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
	require.NoError(t, w.Shards["c"].Release(t.Context()))
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
	require.NoError(t, w.Shards["e"].Release(t.Context()))
	placed()

	for _, o := range all {
		spec := o.(*unstructured.Unstructured).Object["spec"].(map[string]any)
		require.Equal(t, "light", spec["theme"])
	}

	// Without the ring, nothing of ours remains but the empty handover.
	require.NoError(t, w.Client.Delete(t.Context(), w.Ring))

	for _, shard := range []string{"a", "b", "d"} {
		require.NoError(t, w.Shards[shard].Release(t.Context()))
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
	require.Contains(t, message, "updates of resources of the ring may be changed by: webhook defaulter.mutated.example.com of "+w.Ring.Name+
		", policy stamp.mutated.example.com")
}
