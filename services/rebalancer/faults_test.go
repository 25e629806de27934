package rebalancer

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

// class creates a cluster-scoped main object at a shard.
func (w *testRing) class(name, shard string) *networkingv1.IngressClass {
	w.Helper()

	c := &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: w.Labels(shard)},
		Spec:       networkingv1.IngressClassSpec{Controller: "example.com/test"},
	}
	require.NoError(w, w.Client.Create(w.Context(), c))
	w.Cleanup(func() { _ = w.Client.Delete(context.Background(), c) })

	return c
}

func TestClusterScopedObjectsMove(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: "networking.k8s.io", Resource: "ingressclasses"})
	})
	// A name that belongs to b when b has joined.
	w.Join("a", "b")

	name := ""

	for i := 0; name == ""; i++ {
		candidate := fmt.Sprintf("%s-%d", w.Namespace, i)
		if shard, _ := w.View().Owner(key.Key{Group: "networking.k8s.io", Kind: "IngressClass", Name: candidate}); shard == "b" {
			name = candidate
		}
	}

	require.NoError(t, w.Shards["b"].Release(t.Context()))

	c := w.class(name, "a")

	w.start()
	w.AtRest()
	w.Join("b")
	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, c)
	w.Acknowledge(c)
	w.Eventually(ringtest.Placed{Shard: "b"}, c)

	require.NoError(t, w.Shards["b"].Release(t.Context()))
	w.Eventually(ringtest.Placed{Shard: "a"}, c)
}

// Two processes that hold Leases of the same name would both consider the label theirs.
func TestNamesakesGetNothingAndLoseNothing(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")

	cm := w.Main(w.NamesOf("b", 1)[0], "b")
	fresh := w.NamesOf("a", 1)[0]

	w.start()
	w.AtRest()

	versions := w.Versions(cm)
	namesake := &leasetest.Shard{Client: w.Client, Ring: w.Ring.Name, Namespace: w.Plane.Namespace(t), Name: "b"}
	w.Shards["namesake"] = namesake // so that it is cleaned up
	require.NoError(t, namesake.Acquire(t.Context()))

	require.Eventually(t, func() bool {
		return strings.Contains(w.Assigned(v1alpha1.ReasonMoving).Message, "shard b holds its Lease")
	}, 20*time.Second, 10*time.Millisecond)

	w.Eventually(ringtest.Placed{Shard: "a"}, w.Main(fresh, ""))
	require.Equal(t, versions, w.Versions(cm))

	require.NoError(t, namesake.Release(t.Context()))
	w.AtRest()
	require.Equal(t, versions, w.Versions(cm))
}

func TestLeaseNameThatIsNoLabelValueIsPassedOver(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", strings.Repeat("x", 64))
	w.start()

	for _, name := range []string{"one", "two", "three", "four"} {
		w.Eventually(ringtest.Placed{Shard: "a"}, w.Main(name, ""))
	}
}

func TestWithoutShardsNothingIsWritten(t *testing.T) {
	w := newTestRing(t)
	w.Join("a")

	unassigned := w.Main("unassigned", "")
	assigned := w.Main("assigned", "a")
	child := w.Child(assigned, "a")

	require.NoError(t, w.Shards["a"].Release(t.Context()))

	versions := w.Versions(unassigned, assigned, child)

	w.start()
	c := w.Assigned(v1alpha1.ReasonNoShards)
	require.Equal(t, metav1.ConditionFalse, c.Status)
	w.AtRest()
	require.Equal(t, versions, w.Versions(unassigned, assigned, child))

	w.Join("b")
	w.Eventually(ringtest.Placed{Shard: "b"}, unassigned, assigned, child)
}

// A new object may carry the label of a shard that no longer exists: it was restored from a backup, or copied.
func TestLabelOfGoneShardIsCorrectedAtOnce(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "gone")
	w.start()
	w.AtRest()
	require.NoError(t, w.Shards["gone"].Release(t.Context()))
	w.AtRest() // the release has been seen
	require.NoError(t, w.Shards["gone"].Delete(t.Context()))
	w.AtRest()

	restored := w.Main("restored", "gone")
	w.Eventually(ringtest.Placed{Shard: "a"}, restored, w.Child(restored, "gone"))
}

func TestObjectsThatVanishMidMoveHinderNobody(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")

	var all []*corev1.ConfigMap
	for _, name := range w.NamesOf("b", 40) {
		all = append(all, w.Main(name, "b"))
	}

	w.start("--concurrent-writes=1")
	w.AtRest()
	require.NoError(t, w.Shards["b"].Release(t.Context()))

	for i, cm := range all {
		if i%2 == 0 {
			require.NoError(t, w.Client.Delete(t.Context(), cm))
		} else {
			w.Eventually(ringtest.Placed{Shard: "a"}, cm)
		}
	}

	w.Assigned(v1alpha1.ReasonAllAssigned)
}

// Several rings on one resource neither see nor touch each other's labels.
func TestTwoRingsOnOneResource(t *testing.T) {
	one, two := newTestRing(t), newTestRing(t)
	two.Namespace = one.Namespace
	require.NoError(t, two.Client.Get(t.Context(), client.ObjectKeyFromObject(two.Ring), two.Ring))
	two.Ring.Spec.NamespaceSelector = one.Ring.Spec.NamespaceSelector
	require.NoError(t, two.Client.Update(t.Context(), two.Ring))

	one.Join("a", "b")
	two.Shards["x"] = &leasetest.Shard{Client: two.Client, Ring: two.Ring.Name, Namespace: one.Namespace, Name: "x"}
	two.Join("x")

	cm := one.Main("shared", "")
	one.start()
	one.Eventually(ringtest.Placed{Shard: one.Owner("shared")}, cm)
	two.Eventually(ringtest.Placed{Shard: "x"}, cm)

	require.NoError(t, one.Client.Delete(t.Context(), one.Ring))
	require.Eventually(t, func() bool {
		if one.Placed(cm).Drain {
			one.Acknowledge(cm)
		}

		return one.Placed(cm) == ringtest.Placed{}
	}, 20*time.Second, 20*time.Millisecond)
	require.Equal(t, ringtest.Placed{Shard: "x"}, two.Placed(cm))
}

// A leader that stops ends its work immediately, whatever is in progress.
func TestStopsWithMovesInFlight(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")

	for _, name := range w.NamesOf("a", 5) {
		w.Main(name, "b")
	}

	held := w.Main("held", "b")
	stop := w.start("--max-drains-per-shard=1", "--shutdown-grace=15s") // a slower stop is an error
	require.Eventually(t, func() bool {
		require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))
		return w.Ring.Status.Assignment != nil && w.Ring.Status.Assignment.Draining == 1
	}, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, w.Shards["b"].Delete(t.Context())) // objects wait until it is confirmed that their shard is gone
	require.Eventually(t, func() bool {
		return strings.Contains(w.Assigned(v1alpha1.ReasonMoving).Message, "cannot move yet")
	}, 20*time.Second, 20*time.Millisecond)
	stop()
	require.Equal(t, "b", w.Placed(held).Shard)
}
