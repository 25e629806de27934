package rebalancer

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

// latecomers is a resource that the API server does not always serve.
var latecomers = schema.GroupVersionKind{Group: "late.example.clusterring.dev", Version: "v1", Kind: "Latecomer"}

func TestAssignsWhatAdmissionMissed(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: "networking.k8s.io", Resource: "ingressclasses"})
	})
	w.Join("a", "b")

	before := w.Main("before", "")
	beforeChild := w.Child(before, "")

	w.start()
	w.Eventually(ringtest.Placed{Shard: w.Owner("before")}, before, beforeChild)

	after := w.Main("after", "")
	afterChild := w.Child(after, "")
	w.Eventually(ringtest.Placed{Shard: w.Owner("after")}, after, afterChild)

	class := &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: w.Namespace},
		Spec:       networkingv1.IngressClassSpec{Controller: "example.com/test"},
	}
	require.NoError(t, w.Client.Create(t.Context(), class))
	t.Cleanup(func() { _ = w.Client.Delete(t.Context(), class) })
	require.Eventually(t, func() bool { return w.Placed(class).Shard != "" }, 20*time.Second, 10*time.Millisecond,
		"cluster-scoped objects should be assigned too")
}

func TestLeavesForeignObjectsAlone(t *testing.T) {
	w := newTestRing(t)
	w.Join("a")

	elsewhere := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.Plane.Namespace(t), Name: "elsewhere"}}
	require.NoError(t, w.Client.Create(t.Context(), elsewhere))

	other := ringtest.Foreign(w.Namespace, "foreign")
	require.NoError(t, w.Client.Create(t.Context(), other))

	loner := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "loner"}}
	require.NoError(t, w.Client.Create(t.Context(), loner))

	versions := w.Versions(elsewhere, other, loner)

	w.start()
	// This object is written after the others, to the same resources: when it has a shard, the others have been seen.
	last := w.Main("last", "")
	w.Eventually(ringtest.Placed{Shard: "a"}, last, w.Child(last, ""))
	w.AtRest()
	require.Equal(t, versions, w.Versions(elsewhere, other, loner))
}

func TestForeignObjectLosesLabels(t *testing.T) {
	w := newTestRing(t)
	w.Join("a")

	other := ringtest.Foreign(w.Namespace, "foreign")
	other.Labels = w.Labels("a")
	require.NoError(t, w.Client.Create(t.Context(), other))

	w.start()
	w.Eventually(ringtest.Placed{}, other)
}

func TestChildGoesWhereItsOwnerIs(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")

	// The owner is on its way from b to a: b has not released it.
	name := w.NamesOf("a", 1)[0]
	owner := w.Main(name, "b")

	w.start()
	w.Eventually(ringtest.Placed{Shard: "b", Drain: true}, owner)

	child := w.Child(owner, "")
	w.Eventually(ringtest.Placed{Shard: "b"}, child)

	w.Acknowledge(owner)
	w.Eventually(ringtest.Placed{Shard: "a"}, owner, child)
}

func TestMovesObjectsOfDeadShard(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b", "c")

	var moving, staying []client.Object

	for _, name := range w.NamesOf("c", 20) {
		cm := w.Main(name, "c")
		moving = append(moving, cm, w.Child(cm, "c"))
	}

	for _, shard := range []string{"a", "b"} {
		for _, name := range w.NamesOf(shard, 10) {
			cm := w.Main(name, shard)
			staying = append(staying, cm, w.Child(cm, shard))
		}
	}

	w.start()
	w.AtRest()

	versions := w.Versions(staying...)

	require.NoError(t, w.Shards["c"].Release(t.Context()))

	for _, o := range moving {
		if cm, ok := o.(*corev1.ConfigMap); ok {
			w.Eventually(ringtest.Placed{Shard: w.Owner(cm.Name)}, o)
		} else {
			w.Eventually(ringtest.Placed{Shard: w.Owner(o.GetOwnerReferences()[0].Name)}, o)
		}
	}

	w.AtRest()
	require.Equal(t, versions, w.Versions(staying...), "no object of a live shard should be written")
}

func TestDeadShardLosesTheDrainToo(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")

	cm := w.Main(w.NamesOf("a", 1)[0], "b")

	w.start()
	w.Eventually(ringtest.Placed{Shard: "b", Drain: true}, cm)
	require.NoError(t, w.Shards["b"].Release(t.Context()))
	w.Eventually(ringtest.Placed{Shard: "a"}, cm)
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

	require.Eventually(t, func() bool {
		return strings.Contains(w.Assigned(v1alpha1.ReasonMoving).Message,
			"configmaps "+w.Namespace+"/"+cm.Name+": the Lease of shard b was deleted, and its process may still work")
	}, 30*time.Second, 10*time.Millisecond)

	w.Join("b")
	w.AtRest()
	require.Equal(t, versions, w.Versions(cm, child))
}

func TestDeletedLeaseOfDeadShardFreesItsObjects(t *testing.T) {
	w := newTestRing(t)
	w.Join("a")

	w.Shards["b"] = w.Shard("b", time.Second)
	w.Join("b")

	cm := w.Main(w.NamesOf("b", 1)[0], "b")

	w.start()
	w.AtRest()
	require.NoError(t, w.Shards["b"].Delete(t.Context()))
	w.Eventually(ringtest.Placed{Shard: "a"}, cm)
}

func TestJoinDrainsWithinLimitsAndChildrenFollow(t *testing.T) {
	w := newTestRing(t)
	w.Join("a")

	var all []*corev1.ConfigMap

	children := map[string]*corev1.Secret{}

	for _, name := range w.NamesOf("a", 40) {
		cm := w.Main(name, "a")
		all = append(all, cm)
		children[name] = w.Child(cm, "a")
	}

	w.start("--max-drains-per-shard=3")
	w.AtRest()
	w.Join("b")

	moving := map[string]*corev1.ConfigMap{}

	for _, cm := range all {
		if w.Owner(cm.Name) == "b" {
			moving[cm.Name] = cm
		}
	}

	require.Greater(t, len(moving), 6)

	for moved := 0; moved < len(moving); {
		asked := 0

		for _, cm := range moving {
			if p := w.Placed(cm); p.Drain {
				require.Equal(t, "a", p.Shard)
				require.Equal(t, ringtest.Placed{Shard: "a"}, w.Placed(children[cm.Name]), "no child should move before its owner is released")

				asked++
			}
		}

		require.LessOrEqual(t, asked, 3, "more drains in flight than allowed")

		for _, cm := range moving {
			if w.Placed(cm).Drain {
				w.Acknowledge(cm)
				w.Eventually(ringtest.Placed{Shard: "b"}, cm, children[cm.Name])

				moved++
			}
		}
	}

	w.AtRest()

	for _, cm := range all {
		w.Eventually(ringtest.Placed{Shard: w.Owner(cm.Name)}, cm, children[cm.Name])
	}
}

func TestUnwantedDrainIsWithdrawn(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")

	cm := w.Main(w.NamesOf("b", 1)[0], "a")

	w.start()
	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, cm)
	require.NoError(t, w.Shards["b"].Release(t.Context()))
	w.Eventually(ringtest.Placed{Shard: "a"}, cm)
}

func TestLateDrainIsReportedAndNotForced(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")

	names := w.NamesOf("a", 2)
	late := w.Main(names[0], "b")

	w.start("--drain-timeout=1s")

	c := w.Assigned(v1alpha1.ReasonDrainsLate)
	require.Contains(t, c.Message, "configmaps "+w.Namespace+"/"+names[0]+" at shard b")
	require.Equal(t, ringtest.Placed{Shard: "b", Drain: true}, w.Placed(late))

	var events corev1.EventList
	require.Eventually(t, func() bool {
		require.NoError(t, w.Client.List(t.Context(), &events))

		for i := range events.Items {
			if events.Items[i].InvolvedObject.Name == w.Ring.Name && events.Items[i].Reason == v1alpha1.ReasonDrainsLate {
				return true
			}
		}

		return false
	}, 30*time.Second, 50*time.Millisecond, "an event should report the late drain")

	w.Acknowledge(late)
	w.Eventually(ringtest.Placed{Shard: "a"}, late)
	w.Assigned(v1alpha1.ReasonAllAssigned)
}

func TestDeletedRingLeavesNoLabel(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")

	alive := w.Main(w.NamesOf("a", 1)[0], "a")
	aliveChild := w.Child(alive, "a")
	dead := w.Main("dead", "gone")
	deadChild := w.Child(dead, "gone")

	released := w.Shard("gone", 0)
	require.NoError(t, released.Acquire(t.Context()))
	require.NoError(t, released.Release(t.Context()))
	t.Cleanup(func() { _ = released.Delete(t.Context()) })

	w.start()
	w.AtRest()
	require.NoError(t, w.Client.Delete(t.Context(), w.Ring))

	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, alive)
	require.Equal(t, ringtest.Placed{Shard: "a"}, w.Placed(aliveChild), "the child should wait for its owner")

	if p := w.Placed(dead); p.Drain {
		w.Acknowledge(dead) // it had been assigned to a live shard first
	}

	w.Acknowledge(alive)
	w.Eventually(ringtest.Placed{}, alive, aliveChild, dead, deadChild)
	require.Eventually(t, func() bool {
		return client.IgnoreNotFound(w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring)) == nil &&
			w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring) != nil
	}, 20*time.Second, 20*time.Millisecond, "the ring should disappear when its labels are gone")
}

// TestDeletedRingWhoseResourceGoesToo deletes a ring and its resource at the same time, as when a controller and its API are removed.
func TestDeletedRingWhoseResourceGoesToo(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: latecomers.Group, Resource: "latecomers"})
	})
	require.NoError(t, w.Plane.Install(t.Context(), "services/rebalancer/testdata/latecomers.yaml"))
	w.Join("a")
	w.start()

	late := &unstructured.Unstructured{}
	late.SetGroupVersionKind(latecomers)
	late.SetNamespace(w.Namespace)
	late.SetName("late")
	require.NoError(t, w.Client.Create(t.Context(), late))
	w.Eventually(ringtest.Placed{Shard: "a"}, late)
	w.AtRest()

	require.NoError(t, w.Client.Delete(t.Context(), w.Ring))
	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, late)

	definition := &unstructured.Unstructured{}
	definition.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	definition.SetName("latecomers." + latecomers.Group)
	require.NoError(t, w.Client.Delete(t.Context(), definition))
	require.Eventually(t, func() bool {
		return apierrors.IsNotFound(w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))
	}, time.Minute, 20*time.Millisecond, "the ring should disappear: objects that no longer exist cannot be acknowledged")
}

func TestNamespaceThatLeaves(t *testing.T) {
	w := newTestRing(t)
	w.Join("a")

	cm := w.Main("leaving", "a")
	child := w.Child(cm, "a")

	w.start()
	w.AtRest()
	w.LabelNamespace(nil)
	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, cm)
	w.Acknowledge(cm)
	w.Eventually(ringtest.Placed{}, cm, child)

	w.LabelNamespace(map[string]string{"ring": w.Namespace})
	w.Eventually(ringtest.Placed{Shard: "a"}, cm, child)
}

func TestResourceThatLeaves(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: "networking.k8s.io", Resource: "ingressclasses"})
	})
	w.Join("a")

	cm := w.Main("leaving", "a")
	child := w.Child(cm, "a")

	stop := w.start()
	w.AtRest()
	stop()

	// No rebalancer runs now: the ring's status remembers which labels have to be removed.
	w.edit(func(s *v1alpha1.ClusterRingSpec) { s.Resources = s.Resources[1:] })
	w.start()
	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, cm)
	require.Equal(t, ringtest.Placed{Shard: "a"}, w.Placed(child))
	w.Acknowledge(cm)
	w.Eventually(ringtest.Placed{}, cm, child)
	require.Eventually(t, func() bool {
		require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))

		a := w.Ring.Status.Assignment

		return len(a.Resources) == 1 && a.Resources[0].Resource == "ingressclasses"
	}, 20*time.Second, 20*time.Millisecond)
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
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources,
			v1alpha1.RingResource{Group: "late.example.clusterring.dev", Resource: "latecomers"})
	})
	w.Join("a")
	w.start()

	c := w.Assigned(v1alpha1.ReasonResourcesMissing)
	require.Contains(t, c.Message, "latecomers.late.example.clusterring.dev")

	other := w.Main("other", "")
	w.Eventually(ringtest.Placed{Shard: "a"}, other)

	require.NoError(t, w.Plane.Install(t.Context(), "services/rebalancer/testdata/latecomers.yaml"))

	late := &unstructured.Unstructured{}
	late.SetGroupVersionKind(latecomers)
	late.SetNamespace(w.Namespace)
	late.SetName("late")
	require.NoError(t, w.Client.Create(t.Context(), late))
	w.Eventually(ringtest.Placed{Shard: "a"}, late)
	w.Assigned(v1alpha1.ReasonAllAssigned)
}

func TestForbiddenResourceIsReportedAndStopsNoOther(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append([]v1alpha1.RingResource{{Group: "discovery.k8s.io", Resource: "endpointslices"}}, r.Spec.Resources...)
	})
	w.Join("a")
	w.start()

	c := w.Assigned(v1alpha1.ReasonAssignmentFailed)
	require.Contains(t, c.Message, "endpointslices.discovery.k8s.io")
	require.Contains(t, c.Message, "grant get, list, watch and patch")

	main := w.Main("main", "")
	w.Eventually(ringtest.Placed{Shard: "a"}, main, w.Child(main, ""))
}

func TestRestartFindsWhatHappenedMeanwhile(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")

	stop := w.start()
	w.AtRest()
	stop()

	misplaced := w.Main(w.NamesOf("a", 1)[0], "b")
	unassigned := w.Main("unassigned", "")

	w.start()
	w.Eventually(ringtest.Placed{Shard: "b", Drain: true}, misplaced)
	w.Eventually(ringtest.Placed{Shard: w.Owner("unassigned")}, unassigned)
	w.Acknowledge(misplaced)
	w.Eventually(ringtest.Placed{Shard: "a"}, misplaced)
}
