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
)

// latecomers is a resource that the API server does not always serve.
var latecomers = schema.GroupVersionKind{Group: "late.example.clusterring.dev", Version: "v1", Kind: "Latecomer"}

func TestAssignsWhatAdmissionMissed(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: "networking.k8s.io", Resource: "ingressclasses"})
	})
	w.join("a", "b")

	before := w.main("before", "")
	beforeChild := w.child(before, "")

	w.start()
	w.eventually(placed{Shard: w.owner("before")}, before, beforeChild)

	after := w.main("after", "")
	afterChild := w.child(after, "")
	w.eventually(placed{Shard: w.owner("after")}, after, afterChild)

	class := &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: w.ns},
		Spec:       networkingv1.IngressClassSpec{Controller: "example.com/test"},
	}
	require.NoError(t, w.client.Create(t.Context(), class))
	t.Cleanup(func() { _ = w.client.Delete(t.Context(), class) })
	require.Eventually(t, func() bool { return w.placed(class).Shard != "" }, 20*time.Second, 10*time.Millisecond,
		"cluster-scoped objects should be assigned too")
}

func TestLeavesForeignObjectsAlone(t *testing.T) {
	w := newTestRing(t)
	w.join("a")

	elsewhere := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.plane.Namespace(t), Name: "elsewhere"}}
	require.NoError(t, w.client.Create(t.Context(), elsewhere))

	other := foreign(w.ns, "foreign")
	require.NoError(t, w.client.Create(t.Context(), other))

	loner := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "loner"}}
	require.NoError(t, w.client.Create(t.Context(), loner))

	versions := w.versions(elsewhere, other, loner)

	w.start()
	// This object is written after the others, to the same resources: when it has a shard, the others have been seen.
	last := w.main("last", "")
	w.eventually(placed{Shard: "a"}, last, w.child(last, ""))
	w.atRest()
	require.Equal(t, versions, w.versions(elsewhere, other, loner))
}

func TestForeignObjectLosesLabels(t *testing.T) {
	w := newTestRing(t)
	w.join("a")

	other := foreign(w.ns, "foreign")
	other.Labels = w.labels("a")
	require.NoError(t, w.client.Create(t.Context(), other))

	w.start()
	w.eventually(placed{}, other)
}

func TestChildGoesWhereItsOwnerIs(t *testing.T) {
	w := newTestRing(t)
	w.join("a", "b")

	// The owner is on its way from b to a: b has not released it.
	name := w.namesOf("a", 1)[0]
	owner := w.main(name, "b")

	w.start()
	w.eventually(placed{Shard: "b", Drain: true}, owner)

	child := w.child(owner, "")
	w.eventually(placed{Shard: "b"}, child)

	w.acknowledge(owner)
	w.eventually(placed{Shard: "a"}, owner, child)
}

func TestMovesObjectsOfDeadShard(t *testing.T) {
	w := newTestRing(t)
	w.join("a", "b", "c")

	var moving, staying []client.Object

	for _, name := range w.namesOf("c", 20) {
		cm := w.main(name, "c")
		moving = append(moving, cm, w.child(cm, "c"))
	}

	for _, shard := range []string{"a", "b"} {
		for _, name := range w.namesOf(shard, 10) {
			cm := w.main(name, shard)
			staying = append(staying, cm, w.child(cm, shard))
		}
	}

	w.start()
	w.atRest()

	versions := w.versions(staying...)

	require.NoError(t, w.shards["c"].Release(t.Context()))

	for _, o := range moving {
		if cm, ok := o.(*corev1.ConfigMap); ok {
			w.eventually(placed{Shard: w.owner(cm.Name)}, o)
		} else {
			w.eventually(placed{Shard: w.owner(o.GetOwnerReferences()[0].Name)}, o)
		}
	}

	w.atRest()
	require.Equal(t, versions, w.versions(staying...), "no object of a live shard should be written")
}

func TestDeadShardLosesTheDrainToo(t *testing.T) {
	w := newTestRing(t)
	w.join("a", "b")

	cm := w.main(w.namesOf("a", 1)[0], "b")

	w.start()
	w.eventually(placed{Shard: "b", Drain: true}, cm)
	require.NoError(t, w.shards["b"].Release(t.Context()))
	w.eventually(placed{Shard: "a"}, cm)
}

// If somebody deletes a Lease, this proves nothing about the shard's process, which will recreate the Lease.
func TestDeletedLeaseTakesNothingFromLiveShard(t *testing.T) {
	w := newTestRing(t)
	w.join("a", "b")

	cm := w.main(w.namesOf("b", 1)[0], "b")
	child := w.child(cm, "b")

	w.start()
	w.atRest()

	versions := w.versions(cm, child)

	require.NoError(t, w.shards["b"].Delete(t.Context()))

	require.Eventually(t, func() bool {
		return strings.Contains(w.assigned(v1alpha1.ReasonMoving).Message,
			"configmaps "+w.ns+"/"+cm.Name+": the Lease of shard b was deleted, and its process may still work")
	}, 10*time.Second, 10*time.Millisecond)

	w.join("b")
	w.atRest()
	require.Equal(t, versions, w.versions(cm, child))
}

func TestDeletedLeaseOfDeadShardFreesItsObjects(t *testing.T) {
	w := newTestRing(t)
	w.join("a")

	w.shards["b"] = w.shard("b", time.Second)
	w.join("b")

	cm := w.main(w.namesOf("b", 1)[0], "b")

	w.start()
	w.atRest()
	require.NoError(t, w.shards["b"].Delete(t.Context()))
	w.eventually(placed{Shard: "a"}, cm)
}

func TestJoinDrainsWithinLimitsAndChildrenFollow(t *testing.T) {
	w := newTestRing(t)
	w.join("a")

	var all []*corev1.ConfigMap

	children := map[string]*corev1.Secret{}

	for _, name := range w.namesOf("a", 40) {
		cm := w.main(name, "a")
		all = append(all, cm)
		children[name] = w.child(cm, "a")
	}

	w.start("--max-drains-per-shard=3")
	w.atRest()
	w.join("b")

	moving := map[string]*corev1.ConfigMap{}

	for _, cm := range all {
		if w.owner(cm.Name) == "b" {
			moving[cm.Name] = cm
		}
	}

	require.Greater(t, len(moving), 6)

	for moved := 0; moved < len(moving); {
		asked := 0

		for _, cm := range moving {
			if p := w.placed(cm); p.Drain {
				require.Equal(t, "a", p.Shard)
				require.Equal(t, placed{Shard: "a"}, w.placed(children[cm.Name]), "no child should move before its owner is released")

				asked++
			}
		}

		require.LessOrEqual(t, asked, 3, "more drains in flight than allowed")

		for _, cm := range moving {
			if w.placed(cm).Drain {
				w.acknowledge(cm)
				w.eventually(placed{Shard: "b"}, cm, children[cm.Name])

				moved++
			}
		}
	}

	w.atRest()

	for _, cm := range all {
		w.eventually(placed{Shard: w.owner(cm.Name)}, cm, children[cm.Name])
	}
}

func TestUnwantedDrainIsWithdrawn(t *testing.T) {
	w := newTestRing(t)
	w.join("a", "b")

	cm := w.main(w.namesOf("b", 1)[0], "a")

	w.start()
	w.eventually(placed{Shard: "a", Drain: true}, cm)
	require.NoError(t, w.shards["b"].Release(t.Context()))
	w.eventually(placed{Shard: "a"}, cm)
}

func TestLateDrainIsReportedAndNotForced(t *testing.T) {
	w := newTestRing(t)
	w.join("a", "b")

	names := w.namesOf("a", 2)
	late := w.main(names[0], "b")

	w.start("--drain-timeout=1s")

	c := w.assigned(v1alpha1.ReasonDrainsLate)
	require.Contains(t, c.Message, "configmaps "+w.ns+"/"+names[0]+" at shard b")
	require.Equal(t, placed{Shard: "b", Drain: true}, w.placed(late))

	var events corev1.EventList
	require.Eventually(t, func() bool {
		require.NoError(t, w.client.List(t.Context(), &events))

		for i := range events.Items {
			if events.Items[i].InvolvedObject.Name == w.ring.Name && events.Items[i].Reason == v1alpha1.ReasonDrainsLate {
				return true
			}
		}

		return false
	}, 10*time.Second, 50*time.Millisecond, "an event should report the late drain")

	w.acknowledge(late)
	w.eventually(placed{Shard: "a"}, late)
	w.assigned(v1alpha1.ReasonAllAssigned)
}

func TestDeletedRingLeavesNoLabel(t *testing.T) {
	w := newTestRing(t)
	w.join("a", "b")

	alive := w.main(w.namesOf("a", 1)[0], "a")
	aliveChild := w.child(alive, "a")
	dead := w.main("dead", "gone")
	deadChild := w.child(dead, "gone")

	released := w.shard("gone", 0)
	require.NoError(t, released.Acquire(t.Context()))
	require.NoError(t, released.Release(t.Context()))
	t.Cleanup(func() { _ = released.Delete(t.Context()) })

	w.start()
	w.atRest()
	require.NoError(t, w.client.Delete(t.Context(), w.ring))

	w.eventually(placed{Shard: "a", Drain: true}, alive)
	require.Equal(t, placed{Shard: "a"}, w.placed(aliveChild), "the child should wait for its owner")

	if p := w.placed(dead); p.Drain {
		w.acknowledge(dead) // it had been assigned to a live shard first
	}

	w.acknowledge(alive)
	w.eventually(placed{}, alive, aliveChild, dead, deadChild)
	require.Eventually(t, func() bool {
		return client.IgnoreNotFound(w.client.Get(t.Context(), client.ObjectKeyFromObject(w.ring), w.ring)) == nil &&
			w.client.Get(t.Context(), client.ObjectKeyFromObject(w.ring), w.ring) != nil
	}, 20*time.Second, 20*time.Millisecond, "the ring should disappear when its labels are gone")
}

// TestDeletedRingWhoseResourceGoesToo deletes a ring and its resource at the same time, as when a controller and its API are removed.
func TestDeletedRingWhoseResourceGoesToo(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: latecomers.Group, Resource: "latecomers"})
	})
	require.NoError(t, w.plane.Install(t.Context(), "services/rebalancer/testdata/latecomers.yaml"))
	w.join("a")
	w.start()

	late := &unstructured.Unstructured{}
	late.SetGroupVersionKind(latecomers)
	late.SetNamespace(w.ns)
	late.SetName("late")
	require.NoError(t, w.client.Create(t.Context(), late))
	w.eventually(placed{Shard: "a"}, late)
	w.atRest()

	require.NoError(t, w.client.Delete(t.Context(), w.ring))
	w.eventually(placed{Shard: "a", Drain: true}, late)

	definition := &unstructured.Unstructured{}
	definition.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	definition.SetName("latecomers." + latecomers.Group)
	require.NoError(t, w.client.Delete(t.Context(), definition))
	require.Eventually(t, func() bool {
		return apierrors.IsNotFound(w.client.Get(t.Context(), client.ObjectKeyFromObject(w.ring), w.ring))
	}, time.Minute, 20*time.Millisecond, "the ring should disappear: objects that no longer exist cannot be acknowledged")
}

func TestNamespaceThatLeaves(t *testing.T) {
	w := newTestRing(t)
	w.join("a")

	cm := w.main("leaving", "a")
	child := w.child(cm, "a")

	w.start()
	w.atRest()
	w.labelNamespace(nil)
	w.eventually(placed{Shard: "a", Drain: true}, cm)
	w.acknowledge(cm)
	w.eventually(placed{}, cm, child)

	w.labelNamespace(map[string]string{"ring": w.ns})
	w.eventually(placed{Shard: "a"}, cm, child)
}

func TestResourceThatLeaves(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: "networking.k8s.io", Resource: "ingressclasses"})
	})
	w.join("a")

	cm := w.main("leaving", "a")
	child := w.child(cm, "a")

	stop := w.start()
	w.atRest()
	stop()

	// No rebalancer runs now: the ring's status remembers which labels have to be removed.
	w.edit(func(s *v1alpha1.ClusterRingSpec) { s.Resources = s.Resources[1:] })
	w.start()
	w.eventually(placed{Shard: "a", Drain: true}, cm)
	require.Equal(t, placed{Shard: "a"}, w.placed(child))
	w.acknowledge(cm)
	w.eventually(placed{}, cm, child)
	require.Eventually(t, func() bool {
		require.NoError(t, w.client.Get(t.Context(), client.ObjectKeyFromObject(w.ring), w.ring))

		a := w.ring.Status.Assignment

		return len(a.Resources) == 1 && a.Resources[0].Resource == "ingressclasses"
	}, 20*time.Second, 20*time.Millisecond)
}

func TestControlledResourceThatLeavesAlone(t *testing.T) {
	w := newTestRing(t)
	w.join("a")

	cm := w.main("staying", "a")
	child := w.child(cm, "a")

	w.start()
	w.atRest()
	w.edit(func(s *v1alpha1.ClusterRingSpec) { s.Resources[0].ControlledResources = nil })
	w.eventually(placed{}, child)
	w.eventually(placed{Shard: "a"}, cm)
}

func TestMissingResourceIsReportedAndWorksOnceItAppears(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources,
			v1alpha1.RingResource{Group: "late.example.clusterring.dev", Resource: "latecomers"})
	})
	w.join("a")
	w.start()

	c := w.assigned(v1alpha1.ReasonResourcesMissing)
	require.Contains(t, c.Message, "latecomers.late.example.clusterring.dev")

	other := w.main("other", "")
	w.eventually(placed{Shard: "a"}, other)

	require.NoError(t, w.plane.Install(t.Context(), "services/rebalancer/testdata/latecomers.yaml"))

	late := &unstructured.Unstructured{}
	late.SetGroupVersionKind(latecomers)
	late.SetNamespace(w.ns)
	late.SetName("late")
	require.NoError(t, w.client.Create(t.Context(), late))
	w.eventually(placed{Shard: "a"}, late)
	w.assigned(v1alpha1.ReasonAllAssigned)
}

func TestForbiddenResourceIsReportedAndStopsNoOther(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append([]v1alpha1.RingResource{{Group: "discovery.k8s.io", Resource: "endpointslices"}}, r.Spec.Resources...)
	})
	w.join("a")
	w.start()

	c := w.assigned(v1alpha1.ReasonAssignmentFailed)
	require.Contains(t, c.Message, "endpointslices.discovery.k8s.io")
	require.Contains(t, c.Message, "grant get, list, watch and patch")

	main := w.main("main", "")
	w.eventually(placed{Shard: "a"}, main, w.child(main, ""))
}

func TestRestartFindsWhatHappenedMeanwhile(t *testing.T) {
	w := newTestRing(t)
	w.join("a", "b")

	stop := w.start()
	w.atRest()
	stop()

	misplaced := w.main(w.namesOf("a", 1)[0], "b")
	unassigned := w.main("unassigned", "")

	w.start()
	w.eventually(placed{Shard: "b", Drain: true}, misplaced)
	w.eventually(placed{Shard: w.owner("unassigned")}, unassigned)
	w.acknowledge(misplaced)
	w.eventually(placed{Shard: "a"}, misplaced)
}
