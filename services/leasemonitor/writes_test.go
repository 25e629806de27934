package leasemonitor

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
)

// refuseWrites has the API server refuse all writes of Leases but their deletion, because of a webhook that nobody serves, until the function that it
// returns is called. Both wait until the API server does so.
func (w *world) refuseWrites() (allow func()) {
	w.t.Helper()

	webhook := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "broken-" + w.ns},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name:                    "broken.example.com",
			ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: new("https://127.0.0.1:1")},
			FailurePolicy:           new(admissionregistrationv1.Fail),
			SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{"coordination.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"leases"},
				},
			}},
		}},
	}
	probe := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "probe"}}
	refused := func() bool {
		err := w.plane.Client.Create(w.t.Context(), probe.DeepCopy(), client.DryRunAll)
		if err != nil {
			require.True(w.t, apierrors.IsInternalError(err), "%v", err)
		}

		return err != nil
	}

	require.NoError(w.t, w.plane.Client.Create(w.t.Context(), webhook))
	w.t.Cleanup(func() {
		require.NoError(w.t, client.IgnoreNotFound(w.plane.Client.Delete(context.WithoutCancel(w.t.Context()), webhook)))
	})
	require.Eventually(w.t, refused, patience, interval)

	return func() {
		w.t.Helper()
		require.NoError(w.t, w.plane.Client.Delete(w.t.Context(), webhook))
		require.Eventually(w.t, func() bool { return !refused() }, patience, interval)
	}
}

// Reads go on while Leases cannot be written for three minutes, so that no shard can renew. Nobody loses its Lease to the leader, nor to a
// replica that has looked on or has begun in between, and leads afterwards.
func TestNoLeaseIsTakenAfterWritesHaveFailed(t *testing.T) {
	const d = 30 * time.Second

	for who, leads := range map[string]func(w *world, clock *testclock.FakeClock, begin []*instance) *instance{
		"the leader": func(_ *world, _ *testclock.FakeClock, begin []*instance) *instance {
			begin[1].stop()
			return begin[0]
		},
		"a replica that has looked on": func(_ *world, _ *testclock.FakeClock, begin []*instance) *instance {
			begin[0].stop()
			return begin[1]
		},
		"a replica that has just begun": func(w *world, clock *testclock.FakeClock, begin []*instance) *instance {
			begin[0].stop()
			begin[1].stop()

			return startInstance(w.t, w.plane, clock)
		},
	} {
		t.Run(who, func(t *testing.T) {
			w := newWorld(t)
			clock := testclock.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
			replicas := []*instance{newInstance(t, w.plane, clock)}
			replicas[0].waitElected()

			replicas = append(replicas, newInstance(t, w.plane, clock))

			join := func(name string) *leasetest.Shard {
				shard := &leasetest.Shard{Client: w.plane.Client, Ring: w.ring, Namespace: w.ns, Name: name, Duration: d}
				require.NoError(t, shard.Acquire(t.Context()))

				return shard
			}

			var shards []*leasetest.Shard
			for n := range 3 {
				shards = append(shards, join(fmt.Sprintf("shard-%d", n)))
				w.waitState(shards[n].Name, "ready")
			}

			allow := w.refuseWrites()

			for passed := time.Duration(0); passed < 3*time.Minute; passed += beat {
				pass(replicas...)
			}

			leader := leads(w, clock, replicas)
			ready := leader.runtime.Ready()

			allow()

			// The elections of Leases that cannot be written may take their time, in which none passes for the shards.
			if leader != replicas[0] {
				require.NoError(t, w.plane.Client.Delete(t.Context(), &coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{Namespace: contract.SystemNamespace, Name: name},
				}))
			}
			leader.waitElected()

			// Shards have two D to come back.
			leader.pass(2*d - beat)
			require.NoError(t, leader.runtime.Ready())
			w.waitState(join("newcomer").Name, "ready") // which shows that it works again

			for _, s := range shards[1:] {
				require.NoError(t, s.Renew(t.Context()), "it has lost its Lease")
			}

			require.Error(t, ready, "it should say that it cannot see")

			// The one that does not come back is taken.
			require.Eventually(t, func() bool {
				leader.pass(beat)
				return *w.lease(shards[0].Name).Spec.HolderIdentity == contract.LeaseControllerIdentity
			}, patience, interval)
		})
	}
}
