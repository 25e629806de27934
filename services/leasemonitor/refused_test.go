package leasemonitor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
)

// refusal is what the API server says.
const refusal = "nobody takes this Lease"

// refuseTakeOver has the API server refuse every other holder of the Lease, until the function that it returns is called.
// Both wait until the API server does so.
func (w *world) refuseTakeOver(shard string) (allow func()) {
	w.t.Helper()

	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "keep-" + w.ns},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
					Rule: admissionregistrationv1.Rule{
						APIGroups: []string{"coordination.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"leases"},
					},
				},
			}}},
			MatchConditions: []admissionregistrationv1.MatchCondition{{
				Name: "lease", Expression: fmt.Sprintf("request.namespace == %q && request.name == %q", w.ns, shard),
			}},
			Validations: []admissionregistrationv1.Validation{{
				Expression: "object.spec.holderIdentity == oldObject.spec.holderIdentity", Message: refusal,
			}},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: policy.ObjectMeta,
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy.Name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	refused := func() bool {
		l := w.lease(shard)
		patch := client.MergeFrom(l.DeepCopy())
		l.Spec.HolderIdentity = new("somebody")

		err := w.plane.Client.Patch(w.t.Context(), l, patch, client.DryRunAll)
		if err != nil {
			require.ErrorContains(w.t, err, refusal)
		}

		return err != nil
	}

	require.NoError(w.t, w.plane.Client.Create(w.t.Context(), policy))
	require.NoError(w.t, w.plane.Client.Create(w.t.Context(), binding))
	require.Eventually(w.t, refused, patience, interval)

	return func() {
		w.t.Helper()
		require.NoError(w.t, w.plane.Client.Delete(w.t.Context(), binding))
		require.NoError(w.t, w.plane.Client.Delete(w.t.Context(), policy))
		require.Eventually(w.t, func() bool { return !refused() }, patience, interval)
	}
}

// conditions returns ShardsAvailable and Ready of the ring.
func (w *world) conditions() (available, ready metav1.Condition) {
	w.t.Helper()

	ring := &v1alpha1.ClusterRing{}
	require.NoError(w.t, w.plane.Client.Get(w.t.Context(), types.NamespacedName{Name: w.ring}, ring))

	find := func(kind string) metav1.Condition {
		return ptr.Deref(meta.FindStatusCondition(ring.Status.Conditions, kind), metav1.Condition{})
	}

	return find(v1alpha1.ConditionShardsAvailable), find(v1alpha1.ConditionReady)
}

// A dead shard whose Lease cannot be taken keeps its objects. The ring says so, and is right again when it can.
func TestRingTellsOfLeaseThatCannotBeTaken(t *testing.T) {
	const d = 10 * time.Second

	w := newWorld(t)
	clock := testclock.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	i := newInstance(t, w.plane, clock)
	i.waitElected()

	for name, d := range map[string]time.Duration{"lives": time.Hour, "dies": d} {
		shard := &leasetest.Shard{Client: w.plane.Client, Ring: w.ring, Namespace: w.ns, Name: name, Duration: d}
		require.NoError(t, shard.Acquire(t.Context()))
		w.waitState(name, "ready")
	}

	w.waitShards(2, 2)
	_, ready := w.conditions()
	require.Equal(t, metav1.ConditionTrue, ready.Status)

	allow := w.refuseTakeOver("dies")

	var available metav1.Condition
	require.Eventually(t, func() bool {
		i.pass(beat)

		available, ready = w.conditions()

		return available.Status == metav1.ConditionFalse && ready.Status == metav1.ConditionFalse
	}, patience, interval, "the ring never told")
	require.Equal(t, v1alpha1.ReasonLeasesNotTaken, available.Reason)
	require.Contains(t, available.Message, fmt.Sprintf("2 of 2 shards available; shard %s/dies has not renewed its Lease since 2026-01-02T03:04:", w.ns))
	require.Contains(t, available.Message, refusal)
	problem, _, _ := strings.Cut(available.Message, "; Leases in all namespaces count")
	require.Contains(t, ready.Message, problem)
	require.Equal(t, "dies", *w.lease("dies").Spec.HolderIdentity)

	allow()
	require.Eventually(t, func() bool {
		i.pass(beat)
		return *w.lease("dies").Spec.HolderIdentity == contract.LeaseControllerIdentity
	}, patience, interval, "the Lease was never taken")
	require.Eventually(t, func() bool { // at first it may count the Lease as its cache still has it
		available, ready = w.conditions()
		return strings.HasPrefix(available.Message, "1 of 2 shards available, 1 without their Lease; Leases in all namespaces count")
	}, patience, interval, "the ring tells what is over")
	require.Equal(t, v1alpha1.ReasonShardsAvailable, available.Reason)
	require.Equal(t, metav1.ConditionTrue, available.Status)
	require.Equal(t, metav1.ConditionTrue, ready.Status)
}
