package rebalancer

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

// refuseUpdates makes the API server refuse each update of a ConfigMap of the namespace, until callOff is called. The same
// happens while the validating webhook of a resource is down.
func (w *testRing) refuseUpdates() (callOff func()) {
	w.Helper()

	nowhere := "https://127.0.0.1:1/"
	hook := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: w.Namespace},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name:                    "away.example.clusterring.dev",
			ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: &nowhere},
			AdmissionReviewVersions: []string{"v1"},
			SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy:           new(admissionregistrationv1.Fail),
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: w.Namespace}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}
	require.NoError(w, w.Client.Create(w.Context(), hook))

	callOff = func() { require.NoError(w, client.IgnoreNotFound(w.Client.Delete(context.Background(), hook))) }
	w.Cleanup(callOff)

	probe := w.Main("probe", "")
	require.Eventually(w, func() bool {
		return apierrors.IsInternalError(w.Client.Update(w.Context(), probe, client.DryRunAll))
	}, 20*time.Second, 10*time.Millisecond, "the API server should use the webhook")

	return callOff
}

// isGone reports whether the ring no longer exists.
func (w *testRing) isGone() bool {
	w.Helper()

	err := w.Client.Get(w.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring)
	require.NoError(w, client.IgnoreNotFound(err))

	return apierrors.IsNotFound(err)
}

// labelled returns the ConfigMaps that carry the ring's label.
func (w *testRing) labelled() []corev1.ConfigMap {
	w.Helper()

	var list corev1.ConfigMapList
	require.NoError(w, w.Client.List(w.Context(), &list, client.HasLabels{w.Ring.LabelKeys().Shard}))

	return list.Items
}

// While objects cannot be drained, the ring reports this and the reason, and is not converged. When they can be drained, all of them are.
func TestNothingIsForgottenWhileDrainsFail(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")

	var misplaced []client.Object
	for _, name := range w.NamesOf("b", 20) {
		misplaced = append(misplaced, w.Main(name, "a"))
	}

	callOff := w.refuseUpdates()
	w.start()

	require.Eventually(t, func() bool {
		c := w.Assigned(v1alpha1.ReasonMoving)
		return strings.Contains(c.Message, "20 misplaced") && strings.Contains(c.Message, "failed calling webhook")
	}, 20*time.Second, 10*time.Millisecond, "the condition should report the problem")
	require.Eventually(t, func() bool { return w.failures() >= 80 }, 20*time.Second, 10*time.Millisecond, "all drains should be retried")
	w.Assigned(v1alpha1.ReasonMoving)
	require.Empty(t, w.Ring.Status.Assignment.Fingerprint, "otherwise children of misplaced objects would be assigned as if their owners were in place")

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
	require.NoError(t, w.Client.Delete(t.Context(), w.Ring))
	require.Eventually(t, func() bool {
		return strings.Contains(w.Assigned(v1alpha1.ReasonDeleting).Message, "failed calling webhook")
	}, 20*time.Second, 10*time.Millisecond, "the condition should report what it waits for")
	require.Len(t, w.labelled(), 20)

	callOff()
	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, all...)

	for _, o := range all {
		require.False(t, w.isGone())
		w.Acknowledge(o)
	}

	require.Eventually(t, w.isGone, 20*time.Second, 10*time.Millisecond)
	require.Empty(t, w.labelled())
}

// A child of an owner whose resource has left the ring waits for nothing, although the resource of the child is still in the ring.
func TestChildOfAReleasedOwnerIsNotWaitedFor(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: "networking.k8s.io", Resource: "ingressclasses"})
	})
	w.Join("a")

	released, last := w.Main("released", "a"), w.Main("last", "a")
	class := w.class(w.Namespace, "a")

	w.start()
	w.AtRest()

	w.Ring.Spec.Resources = w.Ring.Spec.Resources[1:]
	w.Ring.Spec.Resources[0].ControlledResources = []v1alpha1.ControlledResource{{Resource: "secrets"}}
	require.NoError(t, w.Client.Update(t.Context(), w.Ring))
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
		require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))

		a := w.Ring.Status.Assignment

		return a.Fingerprint != "" && len(a.Resources) == 1 && a.Resources[0].Resource == "ingressclasses"
	}, 20*time.Second, 20*time.Millisecond, "the status should not remember it: %+v", w.Ring.Status.Assignment)
}
