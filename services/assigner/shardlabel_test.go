package assigner_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// ownLabelled returns a ring with a label of its own, which the assigner's tests may share.
func ownLabelled(t *testing.T, name, label string, shards ...string) *fixture {
	t.Helper()

	p := localplane.Shared(t)
	f := &fixture{Plane: p, t: t, name: name, label: label, namespace: p.Namespace(t), kind: websiteKind(name)}
	f.serve(f.kind)

	for _, s := range shards {
		shard := &leasetest.Shard{Client: f.Client, Ring: f.name, Namespace: f.namespace, Name: s, ShardLabel: label}
		require.NoError(t, shard.Acquire(t.Context()))
	}

	f.shards = shards
	f.declare(v1alpha1.RingResource{Group: f.kind.Group, Resource: "websites"})

	return f
}

func TestAssignsByTheLabelOfTheRing(t *testing.T) {
	f := ownLabelled(t, "own-label", "own.example.com/shard", "a", "b")
	start(t, f.Plane)
	f.registered()

	name := unique("site")
	require.Equal(t, map[string]string{"own.example.com/shard": f.owner(name)}, f.create(f.website(name)).GetLabels())
	require.Equal(t, "own.example.com/shard", f.ring().Status.ShardLabel)

	selector := sharder(f.configuration()).ObjectSelector
	require.Equal(t, []metav1.LabelSelectorRequirement{{Key: "own.example.com/shard", Operator: metav1.LabelSelectorOpDoesNotExist}}, selector.MatchExpressions)

	// A write that drops the label gets it back; after a drain, nothing follows the object, so it gets the next shard.
	site := f.create(f.website(unique("site")))
	shard := site.GetLabels()["own.example.com/shard"]
	require.NoError(t, f.Client.Patch(t.Context(), site, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":null}}`))))
	require.Equal(t, shard, site.GetLabels()["own.example.com/shard"])
}

// TestYoungerRingWithTheSameLabel: nothing is registered for it until the older one is gone.
func TestYoungerRingWithTheSameLabel(t *testing.T) {
	const label = "shared.example.com/shard"

	older := ownLabelled(t, "shared-a", label, "a")
	younger := ownLabelled(t, "shared-b", label, "b") // of rings of the same second, the name decides
	younger.changeRing(func(r *v1alpha1.ClusterRing) {
		r.Spec.Fence = &v1alpha1.Fence{Mode: v1alpha1.FenceEnforce, ServiceAccounts: []v1alpha1.ServiceAccountReference{{Namespace: "n", Name: "a"}}}
	})
	start(t, older.Plane)
	older.registered()

	eventually(t, func() bool { return younger.reason() == "False ShardLabelInUse" }, "the younger ring is refused")

	c := apimeta.FindStatusCondition(younger.ring().Status.Conditions, v1alpha1.ConditionWebhookRegistered)
	require.Contains(t, c.Message, "ring shared-a, which is older, uses the same spec.shardLabel "+label)
	require.True(t, apimeta.IsStatusConditionFalse(younger.ring().Status.Conditions, v1alpha1.ConditionFenced))
	require.Empty(t, younger.ring().Status.ShardLabel)
	require.Nil(t, younger.configuration())
	require.Empty(t, younger.create(younger.website(unique("site"))).GetLabels())

	// A third ring changes nothing, nor does the deletion of the older one until it is gone.
	older.changeRing(func(r *v1alpha1.ClusterRing) { r.Finalizers = []string{contract.FinalizerRebalancer} })
	require.NoError(t, older.Client.Delete(t.Context(), older.ring()))
	eventually(t, func() bool { return older.reason() == "False Deleting" }, "the older ring is being deleted")
	require.Equal(t, "False ShardLabelInUse", younger.reason())

	younger.changeRing(func(r *v1alpha1.ClusterRing) { r.Spec.Fence = nil })
	older.changeRing(func(r *v1alpha1.ClusterRing) { r.Finalizers = nil })
	younger.registered()
	require.Equal(t, label, younger.ring().Status.ShardLabel)
	require.Equal(t, "b", younger.create(younger.website(unique("site"))).GetLabels()[label])
}

// TestRegistrationEndsWhenAnOlderRingAppears: of two rings that are created in the same second, the first may be seen alone.
func TestRegistrationEndsWhenAnOlderRingAppears(t *testing.T) {
	const label = "moment.example.com/shard"

	f := ownLabelled(t, "moment-b", label, "b")
	start(t, f.Plane)
	f.registered()

	// A ring that is older by its name, if it is created in the same second; if not, the roles are the other way round.
	first := &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: "moment-a"},
		Spec:       v1alpha1.ClusterRingSpec{ShardLabel: label, Resources: []v1alpha1.RingResource{{Group: f.kind.Group, Resource: "websites"}}},
	}
	require.NoError(t, f.Client.Create(t.Context(), first))
	t.Cleanup(func() {
		require.NoError(t, client.IgnoreNotFound(f.Client.Delete(context.WithoutCancel(t.Context()), first)))
	})

	other := &fixture{Plane: f.Plane, t: t, name: first.Name, label: label, namespace: f.namespace, kind: f.kind}
	loser := other

	if first.CreationTimestamp.Equal(new(f.ring().CreationTimestamp)) {
		loser = f
	}

	eventually(t, func() bool { return loser.reason() == "False ShardLabelInUse" && loser.configuration() == nil }, "one of them is refused")
}
