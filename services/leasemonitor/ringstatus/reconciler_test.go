package ringstatus_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/leasemonitor/ringstatus"
	"github.com/clusterring/clusterring/services/leasemonitor/shardlease"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// fixture is a ring, and a reconciler with the rights of the service.
type fixture struct {
	*ringstatus.Reconciler

	t     *testing.T
	clock *testclock.FakeClock
	plane *localplane.Plane
	name  string
	ns    string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()

	plane := localplane.Shared(t)
	config, err := clientcmd.BuildConfigFromFlags("", plane.ServiceKubeconfig(t, "leasemonitor"))
	require.NoError(t, err)
	own, err := client.New(config, client.Options{Scheme: plane.Client.Scheme()})
	require.NoError(t, err)

	clock := testclock.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	f := &fixture{
		Reconciler: &ringstatus.Reconciler{
			Client: own, Status: clusterring.StatusWriter{Client: own, Owner: "leasemonitor", Clock: clock}, NotTaken: &shardlease.NotTaken{},
		},
		t: t, clock: clock, plane: plane, ns: plane.Namespace(t),
	}
	f.name = "ring-of-" + f.ns
	require.NoError(t, plane.Client.Create(t.Context(), &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: f.name},
		Spec:       v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Resource: "configmaps"}}},
	}))

	return f
}

// look reconciles the ring and returns it as it is then.
func (f *fixture) look() *v1alpha1.ClusterRing {
	f.t.Helper()

	_, err := f.Reconcile(f.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: f.name}})
	require.NoError(f.t, err)

	return f.ring()
}

func (f *fixture) ring() *v1alpha1.ClusterRing {
	f.t.Helper()

	ring := &v1alpha1.ClusterRing{}
	require.NoError(f.t, f.plane.Client.Get(f.t.Context(), types.NamespacedName{Name: f.name}, ring))

	return ring
}

func (f *fixture) shard(name string) *leasetest.Shard {
	return &leasetest.Shard{Client: f.plane.Client, Ring: f.name, Namespace: f.ns, Name: name}
}

func TestStatusFollowsTheShards(t *testing.T) {
	f := newFixture(t)

	ring := f.look()
	require.Equal(t, ring.Generation, ring.Status.ObservedGeneration)
	require.Zero(t, ring.Status.Shards)
	require.True(t, meta.IsStatusConditionFalse(ring.Status.Conditions, v1alpha1.ConditionReady))

	a, b := f.shard("a"), f.shard("b")
	require.NoError(t, a.Acquire(t.Context()))
	require.NoError(t, b.Acquire(t.Context()))
	f.clock.Step(time.Minute)
	ring = f.look()
	require.EqualValues(t, 2, ring.Status.Shards)
	require.EqualValues(t, 2, ring.Status.AvailableShards)
	ready := meta.FindStatusCondition(ring.Status.Conditions, v1alpha1.ConditionReady)
	require.Equal(t, metav1.ConditionTrue, ready.Status)
	require.Equal(t, v1alpha1.ReasonReconciliationSucceeded, ready.Reason)
	require.True(t, f.clock.Now().Equal(ready.LastTransitionTime.Time))

	since := ready.LastTransitionTime
	require.NoError(t, a.Release(t.Context()))
	f.clock.Step(time.Minute)
	ring = f.look()
	require.EqualValues(t, 2, ring.Status.Shards)
	require.EqualValues(t, 1, ring.Status.AvailableShards)
	require.True(t, since.Equal(&meta.FindStatusCondition(ring.Status.Conditions, v1alpha1.ConditionReady).LastTransitionTime),
		"the message changed, not the status")
}

func TestReadySumsUpWhatOtherServicesSay(t *testing.T) {
	f := newFixture(t)
	require.NoError(t, f.shard("a").Acquire(t.Context()))
	require.True(t, meta.IsStatusConditionTrue(f.look().Status.Conditions, v1alpha1.ConditionReady))

	say := func(state metav1.ConditionStatus, reason string) {
		assigner := clusterring.StatusWriter{Client: f.plane.Client, Owner: "assigner", Clock: f.clock}
		require.NoError(t, assigner.Write(t.Context(), f.ring(), clusterring.StatusPart{Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionWebhookRegistered, Status: state, Reason: reason, Message: "as the assigner says"},
		}}))
	}

	say(metav1.ConditionFalse, v1alpha1.ReasonRegistrationFailed)

	ring := f.look()
	ready := meta.FindStatusCondition(ring.Status.Conditions, v1alpha1.ConditionReady)
	require.Equal(t, metav1.ConditionFalse, ready.Status)
	require.Equal(t, v1alpha1.ReasonReconciliationFailed, ready.Reason)
	require.Equal(t, "WebhookRegistered is False (RegistrationFailed): as the assigner says", ready.Message)
	require.True(t, meta.IsStatusConditionFalse(ring.Status.Conditions, v1alpha1.ConditionWebhookRegistered), "others' conditions stay")

	say(metav1.ConditionTrue, v1alpha1.ReasonRegistered)
	require.True(t, meta.IsStatusConditionTrue(f.look().Status.Conditions, v1alpha1.ConditionReady))
}

func TestNothingIsWrittenWhenNothingChanges(t *testing.T) {
	f := newFixture(t)
	require.NoError(t, f.shard("a").Acquire(t.Context()))
	before := f.look().ResourceVersion

	f.clock.Step(time.Minute)
	require.NoError(t, f.shard("a").Renew(t.Context()))
	require.Equal(t, before, f.look().ResourceVersion)
}

func TestDeletedRingIsNoError(t *testing.T) {
	f := newFixture(t)
	require.NoError(t, f.plane.Client.Delete(t.Context(), f.ring()))

	_, err := f.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: f.name}})
	require.NoError(t, err)
}
