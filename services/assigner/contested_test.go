package assigner_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// registration returns the message of the condition WebhookRegistered.
func (f *fixture) registration() string {
	c := apimeta.FindStatusCondition(f.ring().Status.Conditions, v1alpha1.ConditionWebhookRegistered)
	if c == nil {
		return ""
	}

	return c.Message
}

// meddle changes an object of the ring whenever somebody has written it, as a controller with a watch does, until stop is called. It returns how many
// times it did.
func meddle[O client.Object](f *fixture, list client.ObjectList, change func(O) bool) (stop func() int64) {
	f.t.Helper()

	c, err := client.NewWithWatch(f.Config, client.Options{Scheme: f.Client.Scheme()})
	require.NoError(f.t, err)

	ctx, cancel := context.WithCancel(f.t.Context())
	selector := &client.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{contract.LabelClusterRing: f.name})}

	w, err := c.Watch(ctx, list, selector)
	require.NoError(f.t, err)

	var times atomic.Int64

	done := make(chan struct{})

	go func() {
		defer close(done)

		for e := range w.ResultChan() {
			if o, ok := e.Object.(O); ok && change(o) && c.Update(ctx, o, client.FieldOwner("meddler")) == nil {
				times.Add(1)
			}
		}
	}()

	f.t.Cleanup(func() { f.t.Logf("changed %d times", times.Load()) })

	return func() int64 {
		cancel()
		w.Stop()
		<-done

		return times.Load()
	}
}

// TestNarrowedByAnEnforcer lets another controller exclude namespaces from the webhook, as managed Kubernetes does.
func TestNarrowedByAnEnforcer(t *testing.T) {
	f := newFixture(t, "narrowed", "a")
	start(t, f.Plane)
	f.registered()
	require.Equal(t, "true", f.configuration().Labels["admissions.enforcer/disabled"], "the enforcer of AKS is asked to leave it alone")

	added := []metav1.LabelSelectorRequirement{
		{Key: "control-plane", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"true"}},
		{Key: "kubernetes.azure.com/managedby", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"aks"}},
	}
	narrow := func(c *admissionregistrationv1.MutatingWebhookConfiguration) bool {
		s := sharder(c).NamespaceSelector
		if len(s.MatchExpressions) > 0 {
			return false
		}

		s.MatchExpressions = append(s.MatchExpressions, added...)

		return true
	}
	stop := meddle(f, &admissionregistrationv1.MutatingWebhookConfigurationList{}, narrow)

	eventually(t, func() bool { return strings.Contains(f.registration(), "meddler") }, "the ring says who has narrowed it")
	require.Contains(t, f.registration(), "namespaceSelector")
	require.Equal(t, "True Registered", f.reason())

	// A ring that changes is registered anew, without what others have added, because its own spec may have said so before.
	f.changeRing(func(r *v1alpha1.ClusterRing) { r.Spec.Resources[0].ControlledResources = nil })
	eventually(t, func() bool {
		return f.rules() == 1 && len(sharder(f.configuration()).NamespaceSelector.MatchExpressions) == 2
	}, "the rules follow")
	eventually(t, func() bool { return strings.Contains(f.registration(), "meddler") }, "the ring says so again")

	times := stop()
	require.LessOrEqual(t, times, int64(3))
	require.LessOrEqual(t, f.configuration().Generation, int64(2+3))
	require.Equal(t, added, sharder(f.configuration()).NamespaceSelector.MatchExpressions)
	require.NotEmpty(t, sharder(f.configuration()).NamespaceSelector.MatchLabels)
	f.asked()
}

// TestContestedWebhook lets another controller break the webhook again and again.
func TestContestedWebhook(t *testing.T) {
	f := newFixture(t, "contested", "a")
	start(t, f.Plane)
	f.registered()

	stop := meddle(f, &admissionregistrationv1.MutatingWebhookConfigurationList{}, func(c *admissionregistrationv1.MutatingWebhookConfiguration) bool {
		sharder(c).TimeoutSeconds = new(int32(7))
		sharder(c).Rules[0].Operations = sharder(c).Rules[0].Operations[:1]

		return true
	})

	eventually(t, func() bool { return f.reason() == "False ChangedByOthers" }, "the ring says that others change its webhook")
	require.Contains(t, f.registration(), "meddler")
	require.Contains(t, f.registration(), "webhooks["+contract.WebhookName+"].rules")
	require.Contains(t, f.registration(), "webhooks["+contract.WebhookName+"].timeoutSeconds")
	require.LessOrEqual(t, stop(), int64(8), "nobody writes all the time")

	f.registered()
	require.Contains(t, f.registration(), "meddler", "it is good to know afterwards")
	require.NotEqual(t, int32(7), *sharder(f.configuration()).TimeoutSeconds)
}

// TestContestedFence lets another controller weaken the fence again and again.
func TestContestedFence(t *testing.T) {
	f := newFenced(t, "fence-contested", v1alpha1.FenceEnforce)
	start(t, f.Plane)
	f.registered()
	f.reports("True Enforced")

	stop := meddle(f.fixture, &admissionregistrationv1.ValidatingAdmissionPolicyBindingList{}, func(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) bool {
		b.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Audit}

		return true
	})

	f.reports("False FenceFailed meddler keeps changing spec.validationActions of ValidatingAdmissionPolicyBinding")
	require.LessOrEqual(t, stop(), int64(8), "nobody writes all the time")
	f.reports("True Enforced")
}
