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
	"github.com/clusterring/clusterring/tools/lab/localplane/leasetest"
)

// class creates a cluster-scoped main object at a shard.
func (w *testRing) class(name, shard string) *networkingv1.IngressClass {
	w.Helper()

	c := &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: w.labels(shard)},
		Spec:       networkingv1.IngressClassSpec{Controller: "example.com/test"},
	}
	require.NoError(w, w.client.Create(w.Context(), c))
	w.Cleanup(func() { _ = w.client.Delete(context.Background(), c) })

	return c
}

func TestClusterScopedObjectsMove(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: "networking.k8s.io", Resource: "ingressclasses"})
	})
	// A name that belongs to b when b has joined.
	w.join("a", "b")

	name := ""

	for i := 0; name == ""; i++ {
		candidate := fmt.Sprintf("%s-%d", w.ns, i)
		if shard, _ := w.view().Owner(key.Key{Group: "networking.k8s.io", Kind: "IngressClass", Name: candidate}); shard == "b" {
			name = candidate
		}
	}

	require.NoError(t, w.shards["b"].Release(t.Context()))

	c := w.class(name, "a")

	w.start()
	w.atRest()
	w.join("b")
	w.eventually(placed{Shard: "a", Drain: true}, c)
	w.acknowledge(c)
	w.eventually(placed{Shard: "b"}, c)

	require.NoError(t, w.shards["b"].Release(t.Context()))
	w.eventually(placed{Shard: "a"}, c)
}

// Two processes that hold Leases of the same name would both consider the label theirs.
func TestNamesakesGetNothingAndLoseNothing(t *testing.T) {
	w := newTestRing(t)
	w.join("a", "b")

	cm := w.main(w.namesOf("b", 1)[0], "b")
	fresh := w.namesOf("a", 1)[0]

	w.start()
	w.atRest()

	versions := w.versions(cm)
	namesake := &leasetest.Shard{Client: w.client, Ring: w.ring.Name, Namespace: w.plane.Namespace(t), Name: "b"}
	w.shards["namesake"] = namesake // so that it is cleaned up
	require.NoError(t, namesake.Acquire(t.Context()))

	require.Eventually(t, func() bool {
		return strings.Contains(w.assigned(v1alpha1.ReasonMoving).Message, "shard b holds its Lease")
	}, 20*time.Second, 10*time.Millisecond)

	w.eventually(placed{Shard: "a"}, w.main(fresh, ""))
	require.Equal(t, versions, w.versions(cm))

	require.NoError(t, namesake.Release(t.Context()))
	w.atRest()
	require.Equal(t, versions, w.versions(cm))
}

func TestLeaseNameThatIsNoLabelValueIsPassedOver(t *testing.T) {
	w := newTestRing(t)
	w.join("a", strings.Repeat("x", 64))
	w.start()

	for _, name := range []string{"one", "two", "three", "four"} {
		w.eventually(placed{Shard: "a"}, w.main(name, ""))
	}
}

func TestWithoutShardsNothingIsWritten(t *testing.T) {
	w := newTestRing(t)
	w.join("a")

	unassigned := w.main("unassigned", "")
	assigned := w.main("assigned", "a")
	child := w.child(assigned, "a")

	require.NoError(t, w.shards["a"].Release(t.Context()))

	versions := w.versions(unassigned, assigned, child)

	w.start()
	c := w.assigned(v1alpha1.ReasonNoShards)
	require.Equal(t, metav1.ConditionFalse, c.Status)
	w.atRest()
	require.Equal(t, versions, w.versions(unassigned, assigned, child))

	w.join("b")
	w.eventually(placed{Shard: "b"}, unassigned, assigned, child)
}

// A new object may carry the label of a shard that no longer exists: it was restored from a backup, or copied.
func TestLabelOfGoneShardIsCorrectedAtOnce(t *testing.T) {
	w := newTestRing(t)
	w.join("a", "gone")
	w.start()
	w.atRest()
	require.NoError(t, w.shards["gone"].Release(t.Context()))
	w.atRest() // the release has been seen
	require.NoError(t, w.shards["gone"].Delete(t.Context()))
	w.atRest()

	restored := w.main("restored", "gone")
	w.eventually(placed{Shard: "a"}, restored, w.child(restored, "gone"))
}

func TestObjectsThatVanishMidMoveHinderNobody(t *testing.T) {
	w := newTestRing(t)
	w.join("a", "b")

	var all []*corev1.ConfigMap
	for _, name := range w.namesOf("b", 40) {
		all = append(all, w.main(name, "b"))
	}

	w.start("--concurrent-writes=1")
	w.atRest()
	require.NoError(t, w.shards["b"].Release(t.Context()))

	for i, cm := range all {
		if i%2 == 0 {
			require.NoError(t, w.client.Delete(t.Context(), cm))
		} else {
			w.eventually(placed{Shard: "a"}, cm)
		}
	}

	w.assigned(v1alpha1.ReasonAllAssigned)
}

// Several rings on one resource neither see nor touch each other's labels.
func TestTwoRingsOnOneResource(t *testing.T) {
	one, two := newTestRing(t), newTestRing(t)
	two.ns = one.ns
	require.NoError(t, two.client.Get(t.Context(), client.ObjectKeyFromObject(two.ring), two.ring))
	two.ring.Spec.NamespaceSelector = one.ring.Spec.NamespaceSelector
	require.NoError(t, two.client.Update(t.Context(), two.ring))

	one.join("a", "b")
	two.shards["x"] = &leasetest.Shard{Client: two.client, Ring: two.ring.Name, Namespace: one.ns, Name: "x"}
	two.join("x")

	cm := one.main("shared", "")
	one.start()
	one.eventually(placed{Shard: one.owner("shared")}, cm)
	two.eventually(placed{Shard: "x"}, cm)

	require.NoError(t, one.client.Delete(t.Context(), one.ring))
	require.Eventually(t, func() bool {
		if one.placed(cm).Drain {
			one.acknowledge(cm)
		}

		return one.placed(cm) == placed{}
	}, 20*time.Second, 20*time.Millisecond)
	require.Equal(t, placed{Shard: "x"}, two.placed(cm))
}

// A leader that stops ends its work immediately, whatever is in progress.
func TestStopsWithMovesInFlight(t *testing.T) {
	w := newTestRing(t)
	w.join("a", "b")

	for _, name := range w.namesOf("a", 5) {
		w.main(name, "b")
	}

	held := w.main("held", "b")
	stop := w.start("--max-drains-per-shard=1", "--shutdown-grace=5s") // a slower stop is an error
	require.Eventually(t, func() bool {
		require.NoError(t, w.client.Get(t.Context(), client.ObjectKeyFromObject(w.ring), w.ring))
		return w.ring.Status.Assignment != nil && w.ring.Status.Assignment.Draining == 1
	}, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, w.shards["b"].Delete(t.Context())) // objects wait until it is confirmed that their shard is gone
	require.Eventually(t, func() bool {
		return strings.Contains(w.assigned(v1alpha1.ReasonMoving).Message, "cannot move yet")
	}, 20*time.Second, 20*time.Millisecond)
	stop()
	require.Equal(t, "b", w.placed(held).Shard)
}
