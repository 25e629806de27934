package leasemonitor

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// TestRingsWithOneLabel: only the older ring is Ready and has a fence, until it is gone. Shards that follow another label are reported.
func TestRingsWithOneLabel(t *testing.T) {
	w := newWorld(t)
	label := w.ns + ".example.com/shard"

	create := func(name string) *v1alpha1.ClusterRing {
		ring := &v1alpha1.ClusterRing{
			ObjectMeta: metav1.ObjectMeta{Name: name + "-" + w.ns},
			Spec: v1alpha1.ClusterRingSpec{
				ShardLabel: label, ShardNames: []string{"blue", "green"}, Resources: []v1alpha1.RingResource{{Resource: "configmaps"}},
				Fence: &v1alpha1.Fence{Mode: v1alpha1.FenceEnforce, ServiceAccounts: []v1alpha1.ServiceAccountReference{{Namespace: w.ns, Name: "controller"}}},
			},
		}
		require.NoError(t, w.plane.Client.Create(t.Context(), ring))

		return ring
	}
	older, younger := create("a"), create("b") // of rings of the same second, the name decides

	for name, announced := range map[string]string{"right": label, "wrong": ""} {
		for _, ring := range []string{older.Name, younger.Name} {
			shard := &leasetest.Shard{Client: w.plane.Client, Ring: ring, Namespace: w.ns, Name: name + "-of-" + ring, ShardLabel: announced}
			require.NoError(t, shard.Acquire(t.Context()))
		}
	}

	stop := run(t, "--kubeconfig", w.plane.ServiceKubeconfig(t, name), "--metrics-bind-address", localplane.FreeAddress(t),
		"--health-probe-bind-address", localplane.FreeAddress(t))

	is := func(ring *v1alpha1.ClusterRing, kind, reason string) string {
		var c *metav1.Condition

		require.Eventually(t, func() bool {
			require.NoError(t, w.plane.Client.Get(t.Context(), client.ObjectKeyFromObject(ring), ring))
			c = meta.FindStatusCondition(ring.Status.Conditions, kind)

			return c != nil && c.Reason == reason
		}, patience, interval, "%s of %s should have the reason %s", kind, ring.Name, reason)

		return c.Message
	}
	data := func(name string) map[string]string {
		parameter := &v1alpha1.PolicyParameter{}
		require.NoError(t, client.IgnoreNotFound(w.plane.Client.Get(t.Context(), client.ObjectKey{Name: name}, parameter)))

		return parameter.Data
	}

	is(older, v1alpha1.ConditionReady, v1alpha1.ReasonReconciliationSucceeded)
	require.Contains(t, is(older, v1alpha1.ConditionShardsAvailable, v1alpha1.ReasonShardsIgnored),
		"1 of 2 shards available; shard "+w.ns+"/wrong-of-"+older.Name+": the shard does not announce by which label it selects its objects, and spec.shardLabel of the ring is "+label)
	require.Contains(t, is(younger, v1alpha1.ConditionReady, v1alpha1.ReasonShardLabelInUse), "ring "+older.Name+", which is older, uses the same spec.shardLabel "+label)

	require.Eventually(t, func() bool { return data(contract.FenceName(older.Name))["label"] == label }, patience, interval)
	require.Eventually(t, func() bool {
		shards := w.described()
		return shards["label."+younger.Name] == label && shards["names."+older.Name] == "blue\ngreen"
	}, patience, interval, "the policy about Leases knows every ring")
	require.NotContains(t, w.described(), "label."+w.ring)
	require.Empty(t, data(contract.FenceName(younger.Name)), "a fence of the younger ring would be about the labels of the older one")

	require.NoError(t, w.plane.Client.Delete(t.Context(), older))
	is(younger, v1alpha1.ConditionReady, v1alpha1.ReasonReconciliationSucceeded)
	require.Eventually(t, func() bool { return data(contract.FenceName(younger.Name))["label"] == label }, patience, interval)

	require.NoError(t, w.plane.Client.Delete(t.Context(), younger))
	require.NoError(t, stop())
}
