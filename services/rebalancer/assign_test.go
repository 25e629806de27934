package rebalancer

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

func TestAssignsWhatAdmissionMissed(t *testing.T) {
	w := newTestRing(t, withClasses, func(r *v1alpha1.ClusterRing) { // it is one resource, of however many main ones
		r.Spec.Resources[1].ControlledResources = r.Spec.Resources[0].ControlledResources
	})
	w.Join("a", "b")

	before := w.Main("before", "")
	beforeChild := w.Child(before, "")

	w.start()
	w.Eventually(ringtest.Placed{Shard: w.Owner("before")}, before, beforeChild)

	after := w.Main("after", "")
	afterChild := w.Child(after, "")
	w.Eventually(ringtest.Placed{Shard: w.Owner("after")}, after, afterChild)

	class := w.class(w.Namespace, nil)
	require.Eventually(t, func() bool { return w.Placed(class).Shard != "" }, 20*time.Second, 10*time.Millisecond,
		"cluster-scoped objects should be assigned too")
}

func TestLeavesForeignObjectsAlone(t *testing.T) {
	w := newTestRing(t)
	w.Join("a")

	elsewhere := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.Plane.Namespace(t), Name: "elsewhere"}}
	loner := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "loner"}}
	other := ringtest.Foreign(w.Namespace, "foreign")
	labelled := ringtest.Foreign(w.Namespace, "labelled")
	labelled.Labels = w.Labels("a")

	for _, obj := range []client.Object{elsewhere, loner, other, labelled} {
		require.NoError(t, w.Client.Create(t.Context(), obj))
	}

	versions := w.Versions(elsewhere, other, loner)

	w.start()
	w.Eventually(ringtest.Placed{}, labelled) // its label is the ring's
	// This object is written after the others, to the same resources: when it has a shard, the others have been seen.
	last := w.Main("last", "")
	w.Eventually(ringtest.Placed{Shard: "a"}, last, w.Child(last, ""))
	w.AtRest()
	require.Equal(t, versions, w.Versions(elsewhere, other, loner))
}

func TestMovesObjectsOfDeadShard(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b", "c")

	at := map[string][]client.Object{}

	for _, shard := range []string{"a", "b", "c"} {
		for _, name := range w.NamesOf(shard, 10) {
			cm := w.Main(name, shard)
			at[shard] = append(at[shard], cm, w.Child(cm, shard))
		}
	}

	w.start()
	w.AtRest()

	staying := slices.Concat(at["a"], at["b"])
	versions := w.Versions(staying...)

	w.release("c")

	for _, o := range at["c"] { // a child has the name of its owner
		w.Eventually(ringtest.Placed{Shard: w.Owner(o.GetName())}, o)
	}

	w.AtRest()
	require.Equal(t, versions, w.Versions(staying...), "no object of a live shard should be written")
}

// If somebody deletes a Lease, this proves nothing about the shard's process, which will recreate the Lease.
func TestDeletedLeaseTakesNothingFromLiveShard(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")

	cm := w.Main(w.NamesOf("b", 1)[0], "b")
	child := w.Child(cm, "b")

	w.start()
	w.AtRest()

	versions := w.Versions(cm, child)

	require.NoError(t, w.Shards["b"].Delete(t.Context()))

	w.says(v1alpha1.ReasonMoving,
		"configmaps "+w.Namespace+"/"+cm.Name+": the Lease of shard b was deleted, and its process may still work")

	w.Join("b")
	w.AtRest()
	require.Equal(t, versions, w.Versions(cm, child))
}

func TestJoinDrainsWithinLimitsAndChildrenFollow(t *testing.T) {
	w := newTestRing(t)
	w.Join("a")

	all, children := map[string]*corev1.ConfigMap{}, map[string]*corev1.Secret{}

	for _, name := range w.NamesOf("a", 40) {
		all[name] = w.Main(name, "a")
		children[name] = w.Child(all[name], "a")
	}

	w.start("--max-drains-per-shard=3")
	w.AtRest()
	w.Join("b")

	moving := maps.Clone(all)
	maps.DeleteFunc(moving, func(name string, _ *corev1.ConfigMap) bool { return w.Owner(name) != "b" })
	require.Greater(t, len(moving), 6)

	for len(moving) > 0 {
		var asked []string

		for name, cm := range moving {
			if w.Placed(cm).Drain {
				asked = append(asked, name)
			}
		}

		require.LessOrEqual(t, len(asked), 3, "more drains in flight than allowed")

		for _, name := range asked {
			w.handOver("a", "b", moving[name], children[name])
			delete(moving, name)
		}
	}

	w.AtRest()

	for name, cm := range all {
		w.Eventually(ringtest.Placed{Shard: w.Owner(name)}, cm, children[name])
	}
}

func TestDeletedRingLeavesNoLabel(t *testing.T) {
	w := newTestRing(t, selecting("ours"))
	w.Join("a", "b", "gone")
	w.release("gone")

	alive := w.of("ours", w.NamesOf("a", 1)[0], "a")
	aliveChild := w.Child(alive, "a")
	dead := w.of("ours", "dead", "gone")
	deadChild := w.Child(dead, "gone")
	left := w.of("ours", w.NamesOf("b", 1)[0], "b")

	w.start()
	w.AtRest()
	w.relabel(left, operatedBy, "theirs")
	w.Eventually(ringtest.Placed{Shard: "b", Drain: true}, left)
	w.delete()

	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, alive)
	w.Eventually(ringtest.Placed{Shard: w.Owner("dead"), Drain: true}, dead) // it had been assigned to a live shard first
	require.Equal(t, ringtest.Placed{Shard: "a"}, w.Placed(aliveChild), "the child should wait for its owner")

	for _, obj := range []client.Object{dead, alive, left} {
		w.Placed(obj)
		w.Acknowledge(obj)
	}

	w.Eventually(ringtest.Placed{}, alive, aliveChild, dead, deadChild, left)
	w.gone()
}

func TestNamespaceThatLeaves(t *testing.T) {
	w := newTestRing(t)
	w.Join("a")

	cm := w.Main("leaving", "a")
	child := w.Child(cm, "a")

	w.start()
	w.AtRest()
	w.LabelNamespace(nil)
	w.handOver("a", "", cm, child)

	w.LabelNamespace(map[string]string{"ring": w.Namespace})
	w.Eventually(ringtest.Placed{Shard: "a"}, cm, child)
}

func TestResourceThatLeaves(t *testing.T) {
	w := newTestRing(t, withClasses)
	w.Join("a")

	cm := w.Main("leaving", "a")
	child := w.Child(cm, "a")

	stop := w.start()
	w.AtRest()
	stop()

	// No rebalancer runs now: the ring's status remembers which labels have to be removed.
	w.edit(func(s *v1alpha1.ClusterRingSpec) { s.Resources = s.Resources[1:] })
	w.start()
	w.handOver("a", "", cm, child)
	require.Eventually(t, func() bool {
		all := w.assignment().Resources

		return len(all) == 1 && all[0].Resource == "ingressclasses"
	}, noticed, 20*time.Millisecond)
}

func TestControlledResourceThatLeavesAlone(t *testing.T) {
	w := newTestRing(t)
	w.Join("a")

	cm := w.Main("staying", "a")
	child := w.Child(cm, "a")

	w.start()
	w.AtRest()
	w.edit(func(s *v1alpha1.ClusterRingSpec) { s.Resources[0].ControlledResources = nil })
	w.Eventually(ringtest.Placed{}, child)
	w.Eventually(ringtest.Placed{Shard: "a"}, cm)
}

func TestMissingResourceIsReportedAndWorksOnceItAppears(t *testing.T) {
	w := newChangingRing(t)
	w.start()
	w.says(v1alpha1.ReasonResourcesMissing, "changelings."+changing)
	w.Eventually(ringtest.Placed{Shard: "a"}, w.Main("other", ""))

	w.define(changelings("Namespaced", "v1"), true)
	w.changeling("v1", w.Namespace, "late", ringtest.Placed{Shard: "a"})
	w.Assigned(v1alpha1.ReasonAllAssigned)
}

// A resource that the rebalancer may not read stops no other, and keeps a deleted ring. The status says what to grant.
func TestForbiddenResourceIsReportedAndStopsNoOther(t *testing.T) {
	const resource, helps = "endpointslices.discovery.k8s.io", "grant get, list, watch and patch"

	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append([]v1alpha1.RingResource{{Group: "discovery.k8s.io", Resource: "endpointslices"}},
			r.Spec.Resources...)
	})
	w.Join("a")
	w.start()
	w.says(v1alpha1.ReasonAssignmentFailed, resource, helps)

	main := w.Main("main", "")
	w.Eventually(ringtest.Placed{Shard: "a"}, main, w.Child(main, ""))
	require.Eventually(t, func() bool { return w.recorded("configmaps").Fingerprint == w.View().Fingerprint() }, noticed,
		20*time.Millisecond, "the status should say of the other resource that its objects are in their places")
	w.delete()
	w.says(v1alpha1.ReasonDeleting, resource, helps)
}

func TestRestartFindsWhatHappenedMeanwhile(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")

	stop := w.start()
	w.AtRest()
	stop()

	misplaced, unassigned := w.Main(w.NamesOf("a", 1)[0], "b"), w.Main("unassigned", "")

	w.start()
	w.Eventually(ringtest.Placed{Shard: w.Owner("unassigned")}, unassigned)
	w.handOver("b", "a", misplaced)
}

// class creates a cluster-scoped main object with these labels.
func (w *testRing) class(name string, labels map[string]string) *networkingv1.IngressClass {
	w.Helper()

	c := &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       networkingv1.IngressClassSpec{Controller: "example.com/test"},
	}
	require.NoError(w, w.Client.Create(w.Context(), c))
	w.Cleanup(func() { _ = w.Client.Delete(context.Background(), c) })

	return c
}

func TestClusterScopedObjectsMove(t *testing.T) {
	w := newTestRing(t, withClasses)
	w.Join("a", "b")

	name := w.fixture.NamesOf("b", 1, w.owners(named("networking.k8s.io", "IngressClass", "")))[0]

	w.release("b")

	c := w.class(name, w.Labels("a"))

	w.start()
	w.AtRest()
	w.Join("b")
	w.handOver("a", "b", c)

	w.release("b")
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

	w.says(v1alpha1.ReasonMoving, "shard b holds its Lease")

	w.Eventually(ringtest.Placed{Shard: "a"}, w.Main(fresh, ""))
	require.Equal(t, versions, w.Versions(cm))

	require.NoError(t, namesake.Release(t.Context()))
	w.AtRest()
	require.Equal(t, versions, w.Versions(cm))
}

// A new object may carry the label of a shard that no longer exists: it was restored from a backup, or copied.
func TestLabelOfGoneShardIsCorrectedAtOnce(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "gone")
	w.start()
	w.AtRest()
	w.release("gone")
	w.AtRest() // the release has been seen
	require.NoError(t, w.Shards["gone"].Delete(t.Context()))
	w.AtRest()

	restored := w.Main("restored", "gone")
	w.Eventually(ringtest.Placed{Shard: "a"}, restored, w.Child(restored, "gone"))
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
	w.says(v1alpha1.ReasonMoving, "cannot move yet")
	stop()
	require.Equal(t, "b", w.Placed(held).Shard)
}
