package rebalancer

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

// labelledBy gives a ring a label of its own.
func labelledBy(label string) func(*v1alpha1.ClusterRing) {
	return func(r *v1alpha1.ClusterRing) { r.Spec.ShardLabel = label }
}

// TestMovesByTheLabelOfTheRing: objects are assigned, drained with what follows them, taken from a lost shard, and
// released at the end.
func TestMovesByTheLabelOfTheRing(t *testing.T) {
	const label = "own.example.com/shard"

	w := newTestRing(t, labelledBy(label))
	w.Join("a", "b")

	fresh := w.Main("fresh", "")
	name := w.NamesOf("a", 1)[0]
	owner := w.Main(name, "b")
	child := w.Child(owner, "b")
	require.Equal(t, map[string]string{label: "b"}, owner.Labels)

	// A label of the default ring is none of this one.
	stranger := w.Main(w.NamesOf("b", 1)[0], "")
	stranger.Labels = map[string]string{contract.ShardLabel(w.Ring.Name): "gone", contract.DrainLabel(w.Ring.Name): "true"}
	require.NoError(t, w.Client.Update(t.Context(), stranger))

	w.start()
	w.Eventually(ringtest.Placed{Shard: w.Owner("fresh")}, fresh)
	w.Eventually(ringtest.Placed{Shard: "b"}, stranger)
	require.Equal(t, "true", stranger.Labels[contract.DrainLabel(w.Ring.Name)])

	w.handOver("b", "a", owner, child)
	require.Contains(t, owner.Annotations, label+"-handover")
	w.AtRest()

	w.release("a")
	w.Eventually(ringtest.Placed{Shard: "b"}, owner, child, fresh, stranger)
	w.AtRest()

	w.delete()
	w.Eventually(ringtest.Placed{Shard: "b", Drain: true}, owner, fresh, stranger)
	require.Contains(t, owner.Labels, label+"-drain")
	w.release("b")
	w.gone()
	w.Placed(owner)
	require.Empty(t, owner.Labels)
	w.Placed(stranger)
	require.Len(t, stranger.Labels, 2)
}

// TestMissingPermissionForTheLabel: the condition says what to grant.
func TestMissingPermissionForTheLabel(t *testing.T) {
	const label = "ungranted.example.com/shard"

	w := newTestRing(t, labelledBy(label))
	w.Join("a")
	fresh := w.Main("fresh", "")
	w.start()

	w.says(v1alpha1.ReasonAssignmentFailed,
		"grant the verb write on shardlabels.sharding.timebertt.dev with this name")
	require.Equal(t, ringtest.Placed{}, w.Placed(fresh))

	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: w.Namespace,
			Labels: map[string]string{contract.LabelAggregateToRebalancer: "true"}},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{contract.ResourceShardLabels},
			ResourceNames: []string{label}, Verbs: []string{"write"},
		}},
	}
	require.NoError(t, w.Client.Create(t.Context(), role))
	t.Cleanup(func() { require.NoError(t, w.Client.Delete(context.WithoutCancel(t.Context()), role)) })
	require.NoError(t, w.Plane.Aggregate(t.Context()))
	w.Eventually(ringtest.Placed{Shard: "a"}, fresh)
}

// TestYoungerRingLeavesTheLabelsOfTheOlder: whatever happens to the younger ring, the labels are those of the older
// one, until that is gone.
func TestYoungerRingLeavesTheLabelsOfTheOlder(t *testing.T) {
	const label = "shared.example.com/shard"

	w := newTestRing(t, labelledBy(label))
	w.Join("a")
	object := w.Main("object", "")

	younger := newTestRing(t, labelledBy(label), func(r *v1alpha1.ClusterRing) {
		r.Spec.NamespaceSelector = w.Ring.Spec.NamespaceSelector
		r.Name = "z-" + w.Ring.Name // of rings of the same second, the name decides
	})
	younger.Join("y")

	w.start()
	w.Eventually(ringtest.Placed{Shard: "a"}, object)
	w.AtRest()

	c := younger.Assigned(v1alpha1.ReasonShardLabelInUse)
	require.Contains(t, c.Message, "ring "+w.Ring.Name+", which is older, uses the same spec.shardLabel "+label)
	require.Nil(t, younger.Ring.Status.Assignment)
	require.Empty(t, younger.Ring.Finalizers)

	w.delete()
	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, object)
	younger.Assigned(v1alpha1.ReasonShardLabelInUse)
	w.Acknowledge(object)
	w.gone()

	younger.Eventually(ringtest.Placed{Shard: "y"}, object)
	younger.Assigned(v1alpha1.ReasonAllAssigned)
}

// TestEngineEndsWhenAnOlderRingAppears: of two rings of the same second, the first may have been seen alone.
func TestEngineEndsWhenAnOlderRingAppears(t *testing.T) {
	const label = "twins.example.com/shard"

	w := newTestRing(t, labelledBy(label))
	w.Join("a")
	w.start()
	w.AtRest()

	twin := newTestRing(t, labelledBy(label), func(r *v1alpha1.ClusterRing) { r.Name = "a-" + w.Ring.Name })
	twin.Join("t")

	refused, free := twin, w
	if twin.Ring.CreationTimestamp.Equal(&w.Ring.CreationTimestamp) {
		refused, free = w, twin // the name decides
	}

	refused.Assigned(v1alpha1.ReasonShardLabelInUse)

	object := refused.Main("object", "")
	free.Assigned(v1alpha1.ReasonAllAssigned)
	require.Equal(t, ringtest.Placed{}, refused.Placed(object))
}

// TestCollidingRings: two names with the same label, which somebody has searched. The younger ring moves nothing.
func TestCollidingRings(t *testing.T) {
	const prefix = "colliding-rings-of-a-very-long-name-abcdef-"

	const first, second = prefix + "27184", prefix + "727"

	require.Equal(t, contract.ShardLabel(first), contract.ShardLabel(second))

	w := newTestRing(t, func(r *v1alpha1.ClusterRing) { r.Name = first })
	w.Join("a")
	object := w.Main("object", "")
	w.start()
	w.Eventually(ringtest.Placed{Shard: "a"}, object)
	w.AtRest()

	younger := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Name, r.Spec.NamespaceSelector = second, w.Ring.Spec.NamespaceSelector
	})
	younger.Join("y")

	c := younger.Assigned(v1alpha1.ReasonShardLabelInUse)
	require.Contains(t, c.Message, "ring "+first+", which is older, has the same suffix")
	require.Empty(t, younger.Ring.Finalizers)

	// It is deleted as if it had once been alone.
	versions := w.Versions(object)
	patch := client.RawPatch("application/merge-patch+json",
		[]byte(`{"metadata":{"finalizers":["`+contract.FinalizerRebalancer+`"]}}`))
	require.NoError(t, w.Client.Patch(t.Context(), younger.Ring, patch))
	younger.delete()
	younger.gone()
	w.AtRest()
	require.Equal(t, versions, w.Versions(object))
	require.Equal(t, ringtest.Placed{Shard: "a"}, w.Placed(object))
}
