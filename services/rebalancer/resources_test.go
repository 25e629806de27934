package rebalancer

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

const changing = "changing.example.clusterring.dev"

// noticed is longer than the 15 seconds within which the rebalancer has to notice that the API server's resources have changed.
const noticed = time.Minute

func definitionNamed(name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	u.SetName(name)

	return u
}

// changelings returns a CustomResourceDefinition with both versions. The given versions are served, and the first of them is
// stored.
func changelings(scope string, served ...string) *unstructured.Unstructured {
	u := definitionNamed("changelings." + changing)

	var versions []any
	for _, v := range []string{"v1", "v1beta1"} {
		versions = append(versions, map[string]any{
			"name": v, "served": slices.Contains(served, v), "storage": served[0] == v,
			"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}},
		})
	}

	u.Object["spec"] = map[string]any{
		"group": changing, "scope": scope, "versions": versions,
		"names": map[string]any{"kind": "Changeling", "listKind": "ChangelingList", "plural": "changelings", "singular": "changeling"},
	}

	return u
}

// define creates or updates the definition of the changelings. If anew is true, it deletes the existing one first.
func (w *testRing) define(definition *unstructured.Unstructured, anew bool) {
	w.Helper()

	if anew {
		require.NoError(w, client.IgnoreNotFound(w.Client.Delete(w.Context(), definition.DeepCopy())))
		require.Eventually(w, func() bool {
			return apierrors.IsNotFound(w.Client.Get(w.Context(), client.ObjectKeyFromObject(definition), definition.DeepCopy()))
		}, time.Minute, 20*time.Millisecond)
		require.NoError(w, w.Client.Create(w.Context(), definition))

		return
	}

	require.Eventually(w, func() bool {
		have := definition.DeepCopy()
		require.NoError(w, w.Client.Get(w.Context(), client.ObjectKeyFromObject(have), have))
		have.Object["spec"] = definition.Object["spec"]

		err := w.Client.Update(w.Context(), have)

		return !apierrors.IsConflict(err) && err == nil
	}, time.Minute, 20*time.Millisecond)
}

// edit changes the ring's spec, even if others write to the ring at the same time.
func (w *testRing) edit(change func(*v1alpha1.ClusterRingSpec)) {
	w.Helper()
	require.NoError(w, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := w.Client.Get(w.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring); err != nil {
			return err
		}

		change(&w.Ring.Spec)

		return w.Client.Update(w.Context(), w.Ring)
	}))
}

func (w *testRing) undefine() {
	require.NoError(w, client.IgnoreNotFound(w.Client.Delete(context.Background(), definitionNamed("changelings."+changing))))
}

// changeling creates a changeling in a version as soon as that version is served.
func (w *testRing) changeling(version, namespace, name string) *unstructured.Unstructured {
	w.Helper()

	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: changing, Version: version, Kind: "Changeling"})
	u.SetNamespace(namespace)
	u.SetName(name)

	// This client is new, because the other ones may have outdated scopes.
	require.Eventually(w, func() bool {
		c, err := client.New(w.Plane.Config, client.Options{})
		require.NoError(w, err)

		return c.Create(w.Context(), u.DeepCopy()) == nil
	}, time.Minute, 50*time.Millisecond)

	return u
}

// getsShard waits until an object is assigned to the only shard.
func (w *testRing) getsShard(u *unstructured.Unstructured) {
	w.Helper()

	c, err := client.New(w.Plane.Config, client.Options{})
	require.NoError(w, err)
	require.Eventually(w, func() bool {
		require.NoError(w, c.Get(w.Context(), client.ObjectKeyFromObject(u), u))

		return u.GetLabels()[contract.ShardLabel(w.Ring.Name)] == "a"
	}, noticed, 20*time.Millisecond, "%s should get a shard", u.GetName())
}

func newChangingRing(t *testing.T) *testRing {
	t.Helper()

	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: changing, Resource: "changelings"})
	})
	w.define(changelings("Namespaced", "v1beta1"), true)
	t.Cleanup(w.undefine)
	w.Join("a")

	return w
}

func TestResourceThatGoesToAnotherVersion(t *testing.T) {
	w := newChangingRing(t)
	w.changeling("v1beta1", w.Namespace, "before")
	w.start()
	w.AtRest()

	w.define(changelings("Namespaced", "v1"), false)
	w.getsShard(w.changeling("v1", w.Namespace, "after"))
	w.AtRest()

	// When the ring releases it, it does so in the version that is served.
	w.Join("b")
	w.edit(func(s *v1alpha1.ClusterRingSpec) { s.Resources = s.Resources[:1] })
	w.drained(w.changelingNamed("v1", "before"))
	w.define(changelings("Namespaced", "v1beta1", "v1"), false)
	w.define(changelings("Namespaced", "v1beta1"), false)

	for _, name := range []string{"before", "after"} {
		u := w.changelingNamed("v1beta1", name)
		w.drained(u)
		require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))
		require.Contains(t, w.Ring.Status.Assignment.Resources, v1alpha1.AssignedResource{Group: changing, Resource: "changelings"},
			"it should be served in another version, and not be gone")
		w.Acknowledge(u)
	}

	require.Eventually(t, func() bool {
		require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))
		return len(w.Ring.Status.Assignment.Resources) == 1
	}, noticed, 20*time.Millisecond)
}

func (w *testRing) changelingNamed(version, name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: changing, Version: version, Kind: "Changeling"})
	u.SetNamespace(w.Namespace)
	u.SetName(name)

	return u
}

func (w *testRing) drained(u *unstructured.Unstructured) {
	w.Helper()
	require.Eventually(w, func() bool {
		if err := w.Client.Get(w.Context(), client.ObjectKeyFromObject(u), u); err != nil {
			return false // the version will soon be served
		}

		_, drain := u.GetLabels()[contract.DrainLabel(w.Ring.Name)]

		return drain
	}, noticed, 20*time.Millisecond, "%s should be drained", u.GetName())
}

func TestResourceThatChangesItsScope(t *testing.T) {
	w := newChangingRing(t)
	w.start()
	w.getsShard(w.changeling("v1beta1", w.Namespace, "before"))
	w.AtRest()

	w.define(changelings("Cluster", "v1beta1"), true)
	w.getsShard(w.changeling("v1beta1", "", "after"))
	w.define(changelings("Namespaced", "v1beta1"), true)
	w.getsShard(w.changeling("v1beta1", w.Namespace, "again"))
}

func TestTypoIsRepaired(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = []v1alpha1.RingResource{{Resource: "configmap", ControlledResources: []v1alpha1.ControlledResource{{Resource: "secret"}}}}
	})
	w.Join("a")

	cm := w.Main("main", "")
	child := w.Child(cm, "")

	w.start()

	c := w.Assigned(v1alpha1.ReasonResourcesMissing)
	require.Contains(t, c.Message, "configmap (did you mean configmaps?), secret (did you mean secrets?)")
	require.Empty(t, w.Ring.Status.Assignment.Resources, "a resource that was never served carries no labels")

	w.edit(func(s *v1alpha1.ClusterRingSpec) {
		s.Resources = []v1alpha1.RingResource{{Resource: "configmaps", ControlledResources: []v1alpha1.ControlledResource{{Resource: "secrets"}}}}
	})
	w.Eventually(ringtest.Placed{Shard: "a"}, cm, child)
	w.Assigned(v1alpha1.ReasonAllAssigned)
	w.AtRest()
	require.Equal(t, []v1alpha1.AssignedResource{{
		Resource: "configmaps", ControlledResources: []v1alpha1.ControlledResource{{Resource: "secrets"}},
		Fingerprint: w.Ring.Status.Assignment.Fingerprint,
	}}, w.Ring.Status.Assignment.Resources)
}

// TestTypoThatIsRemembered covers a typo that an earlier version has written into the status.
func TestTypoThatIsRemembered(t *testing.T) {
	w := newTestRing(t)
	w.Join("a")
	require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))

	earlier := clusterring.StatusWriter{Client: w.Client, Owner: name, Clock: clock.RealClock{}}
	require.NoError(t, earlier.Write(t.Context(), w.Ring, clusterring.StatusPart{
		Assignment: &v1alpha1.AssignmentStatus{Resources: []v1alpha1.AssignedResource{{Resource: "configmap"}}},
	}))
	w.start()
	w.Assigned(v1alpha1.ReasonAllAssigned)
	w.AtRest()
	require.Len(t, w.Ring.Status.Assignment.Resources, 1)
	require.Equal(t, "configmaps", w.Ring.Status.Assignment.Resources[0].Resource)
}

func (w *testRing) gone() {
	w.Helper()
	require.Eventually(w, func() bool {
		return apierrors.IsNotFound(w.Client.Get(w.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))
	}, noticed, 20*time.Millisecond, "the ring should disappear: %+v", w.Ring.Status)
}

func TestDeletedRingWithTypo(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Resource: "configmap"})
	})
	w.Join("a")

	cm := w.Main("main", "")

	w.start()
	w.Assigned(v1alpha1.ReasonResourcesMissing)
	w.Eventually(ringtest.Placed{Shard: "a"}, cm)
	require.NoError(t, w.Shards["a"].Release(t.Context()))
	require.NoError(t, w.Client.Delete(t.Context(), w.Ring))
	w.gone()
	w.Eventually(ringtest.Placed{}, cm)
}

// TestDeletedRingSaysWhatItWaitsFor verifies that the condition and an event report what the ring waits for.
func TestDeletedRingSaysWhatItWaitsFor(t *testing.T) {
	w := newTestRing(t)
	w.Join("hung")

	cm := w.Main("held", "hung")

	w.start("--drain-timeout=1s")
	w.AtRest()
	require.NoError(t, w.Client.Delete(t.Context(), w.Ring))

	says := func(reason string) {
		t.Helper()

		var c metav1.Condition

		require.Eventually(t, func() bool {
			c = w.Assigned(v1alpha1.ReasonDeleting)

			return strings.Contains(c.Message, reason)
		}, noticed, 20*time.Millisecond, "the ring should report %s, but reports %s", reason, &c)

		require.Eventually(t, func() bool {
			var list eventsv1.EventList
			require.NoError(t, w.Client.List(t.Context(), &list))

			return slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
				return e.Regarding.Name == w.Ring.Name && e.Reason == v1alpha1.ReasonDeleting && strings.Contains(e.Note, reason)
			})
		}, noticed, 50*time.Millisecond, "an event should report %s", reason)
	}
	says("1 were not released in time, such as configmaps " + w.Namespace + "/held at shard hung")
	says("1 draining (1 configmaps); shards were asked to release 1 at shard hung, ")

	require.Eventually(t, func() bool { return w.Placed(cm).Drain }, noticed, 20*time.Millisecond)
	w.Acknowledge(cm)
	w.gone()
}

// TestDeletedRingThatMayNotRead verifies that the ring waits for a missing permission, and reports it.
func TestDeletedRingThatMayNotRead(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: "discovery.k8s.io", Resource: "endpointslices"})
	})
	w.start()
	w.Assigned(v1alpha1.ReasonAssignmentFailed)
	require.NoError(t, w.Client.Delete(t.Context(), w.Ring))

	require.Eventually(t, func() bool {
		c := w.Assigned(v1alpha1.ReasonDeleting)

		return strings.Contains(c.Message, "endpointslices.discovery.k8s.io") && strings.Contains(c.Message, "grant get, list, watch and patch")
	}, noticed, 20*time.Millisecond)
}

// TestDeletedRingThatMayNotWrite verifies the same of the permission to write: the message names an object, the permission, and what helps.
func TestDeletedRingThatMayNotWrite(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Resource: "limitranges"})
	})
	w.Join("a")

	limits := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "kept", Labels: w.Labels("a")}}
	require.NoError(t, w.Client.Create(t.Context(), limits))
	w.start()
	w.AtRest()
	require.NoError(t, w.Client.Delete(t.Context(), w.Ring))

	c := &metav1.Condition{}

	require.Eventually(t, func() bool {
		*c = w.Assigned(v1alpha1.ReasonDeleting)

		return strings.Contains(c.Message, `cannot patch resource "limitranges"`) &&
			strings.Contains(c.Message, "grant get, list, watch and patch")
	}, noticed, 20*time.Millisecond, "the ring reports %+v", c)
	require.Contains(t, c.Message, "(1 limitranges); requests for 1 have failed for seconds, such as limitranges "+w.Namespace+"/kept: ")

	limits.Labels = nil
	require.NoError(t, w.Client.Update(t.Context(), limits))
	w.gone()
}

// TestRingStoredWithInvalidSelector covers a ring that the API server once accepted. The ring must not stay forever.
func TestRingStoredWithInvalidSelector(t *testing.T) {
	w := newTestRing(t)
	definition := definitionNamed("clusterrings." + v1alpha1.GroupVersion.Group)
	require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(definition), definition))

	strict := definition.DeepCopy()
	t.Cleanup(func() { w.specify(strict) })

	lax := definition.DeepCopy()
	versions, _, err := unstructured.NestedSlice(lax.Object, "spec", "versions")
	require.NoError(t, err)
	unstructured.RemoveNestedField(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "spec", "properties", //nolint:forcetypeassert // it is one
		"namespaceSelector", "properties", "matchLabels", "additionalProperties", "pattern")
	require.NoError(t, unstructured.SetNestedSlice(lax.Object, versions, "spec", "versions"))
	w.specify(lax)

	require.Eventually(t, func() bool {
		require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))

		w.Ring.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a b"}}

		return w.Client.Update(t.Context(), w.Ring) == nil
	}, time.Minute, 50*time.Millisecond, "the API server should accept it soon")
	w.specify(strict)
	require.Eventually(t, func() bool {
		again := w.Ring.DeepCopy()
		again.ObjectMeta = metav1.ObjectMeta{Name: "another"}

		return apierrors.IsInvalid(w.Client.Create(t.Context(), again, client.DryRunAll))
	}, time.Minute, 50*time.Millisecond, "the API server should refuse it soon")

	cm := w.Main("main", "nobody")
	child := w.Child(cm, "nobody")

	w.start()

	c := w.Assigned(v1alpha1.ReasonAssignmentFailed)
	require.Contains(t, c.Message, "spec.namespaceSelector")
	require.Equal(t, ringtest.Placed{Shard: "nobody"}, w.Placed(cm), "no object should be released because of that")

	require.NoError(t, w.Client.Delete(t.Context(), w.Ring))
	w.gone()
	w.Eventually(ringtest.Placed{}, cm, child)
}

// specify writes a CustomResourceDefinition.
func (w *testRing) specify(definition *unstructured.Unstructured) {
	w.Helper()

	have := definitionNamed(definition.GetName())
	require.Eventually(w, func() bool {
		ctx := context.Background()
		require.NoError(w, w.Client.Get(ctx, client.ObjectKeyFromObject(have), have))
		have.Object["spec"] = definition.DeepCopy().Object["spec"]

		return w.Client.Update(ctx, have) == nil
	}, time.Minute, 20*time.Millisecond)
}

// TestManyResourcesThatLeave verifies that the status can remember more resources than a ring may name.
func TestManyResourcesThatLeave(t *testing.T) {
	w := newTestRing(t)

	served := w.servedResources()
	require.Greater(t, len(served), 34, "more than a spec may list")

	w.edit(func(s *v1alpha1.ClusterRingSpec) { s.Resources[0].ControlledResources = served[:32] })
	w.start()

	remembers := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool {
			require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))
			a := w.Ring.Status.Assignment

			return a != nil && len(a.Resources) == 1 && len(a.Resources[0].ControlledResources) == n
		}, noticed, 20*time.Millisecond, "the ring should remember %d resources: %+v", n, &w.Ring.Status)
	}
	remembers(32)

	w.edit(func(s *v1alpha1.ClusterRingSpec) { s.Resources[0].ControlledResources = served[32:] })
	remembers(len(served))
}

// servedResources returns resources that the rebalancer may not read, so that no pass ever completes for them.
func (w *testRing) servedResources() []v1alpha1.ControlledResource {
	w.Helper()

	c, err := discovery.NewDiscoveryClientForConfig(w.Plane.Config)
	require.NoError(w, err)

	lists, err := c.ServerPreferredResources()
	require.NoError(w, err)

	others := []string{ // those that the rebalancer may read, and those that a ring cannot shard
		"", "coordination.k8s.io", v1alpha1.GroupVersion.Group, "admissionregistration.k8s.io", "events.k8s.io", "rbac.authorization.k8s.io",
	}

	var all []v1alpha1.ControlledResource

	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		require.NoError(w, err)

		for _, r := range l.APIResources {
			known := slices.Contains(others, gv.Group) || strings.Contains(gv.Group, "example")
			if !known && slices.Contains(r.Verbs, "list") && !strings.Contains(r.Name, "/") && len(all) < 60 {
				all = append(all, v1alpha1.ControlledResource{Group: gv.Group, Resource: r.Name})
			}
		}
	}

	return all
}
