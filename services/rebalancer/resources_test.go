package rebalancer

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

const changing = "changing.example.clusterring.dev"

func definitionNamed(name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1",
		Kind: "CustomResourceDefinition"})
	u.SetName(name)

	return u
}

// changelings returns a CustomResourceDefinition with both versions. The given versions are served, and the first of
// them is stored.
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
		"names": map[string]any{"kind": "Changeling", "listKind": "ChangelingList", "plural": "changelings",
			"singular": "changeling"},
	}

	return u
}

// define creates or updates the definition of the changelings. If anew is true, it deletes the existing one first.
func (w *testRing) define(definition *unstructured.Unstructured, anew bool) {
	w.Helper()

	if anew {
		w.undefine()
		require.Eventually(w, func() bool {
			return apierrors.IsNotFound(w.Client.Get(w.Context(), client.ObjectKeyFromObject(definition), definition.DeepCopy()))
		}, time.Minute, 20*time.Millisecond)
	}

	require.NoError(w, w.Client.Apply(w.Context(), client.ApplyConfigurationFromUnstructured(definition),
		client.FieldOwner("test"), client.ForceOwnership))
}

// changeling waits until a changeling, which it creates if there is none, is placed as wanted. Its version may soon be
// served. The client is new, because other ones may have outdated scopes.
func (w *testRing) changeling(version, namespace, name string, want ringtest.Placed) *unstructured.Unstructured {
	w.Helper()

	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: changing, Version: version, Kind: "Changeling"})
	u.SetNamespace(namespace)
	u.SetName(name)

	created := u.DeepCopy()

	require.Eventually(w, func() bool {
		c, err := client.New(w.Plane.Config, client.Options{})
		require.NoError(w, err)

		if err := c.Create(w.Context(), created.DeepCopy()); err != nil && !apierrors.IsAlreadyExists(err) {
			return false
		}

		err = c.Get(w.Context(), client.ObjectKeyFromObject(u), u)
		_, drain := u.GetLabels()[contract.DrainLabel(w.Ring.Name)]
		is := ringtest.Placed{Shard: u.GetLabels()[contract.ShardLabel(w.Ring.Name)], Drain: drain}

		return err == nil && is == want
	}, noticed, 50*time.Millisecond, "%s should become %+v", name, want)

	return u
}

// newChangingRing returns a ring with changelings, which are served in the given versions.
func newChangingRing(t *testing.T, served ...string) *testRing {
	t.Helper()

	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: changing, Resource: "changelings"})
	})
	if t.Cleanup(w.undefine); len(served) > 0 {
		w.define(changelings("Namespaced", served...), true)
	}

	w.Join("a")

	return w
}

func (w *testRing) undefine() {
	require.NoError(w, client.IgnoreNotFound(w.Client.Delete(context.Background(),
		definitionNamed("changelings."+changing))))
}

func TestResourceThatGoesToAnotherVersion(t *testing.T) {
	w := newChangingRing(t, "v1beta1")
	w.changeling("v1beta1", w.Namespace, "before", ringtest.Placed{})
	w.start()
	w.AtRest()

	w.define(changelings("Namespaced", "v1"), false)
	w.changeling("v1", w.Namespace, "after", ringtest.Placed{Shard: "a"})
	w.AtRest()

	// When the ring releases it, it does so in the version that is served.
	drained := ringtest.Placed{Shard: "a", Drain: true}

	w.Join("b")
	w.edit(func(s *v1alpha1.ClusterRingSpec) { s.Resources = s.Resources[:1] })
	w.changeling("v1", w.Namespace, "before", drained)
	w.define(changelings("Namespaced", "v1beta1", "v1"), false)
	w.define(changelings("Namespaced", "v1beta1"), false)

	for _, name := range []string{"before", "after"} {
		u := w.changeling("v1beta1", w.Namespace, name, drained)
		require.Contains(t, w.assignment().Resources, v1alpha1.AssignedResource{Group: changing, Resource: "changelings"},
			"it should be served in another version, and not be gone")
		w.Acknowledge(u)
	}

	require.Eventually(t, func() bool {
		return len(w.assignment().Resources) == 1
	}, noticed, 20*time.Millisecond)
}

func TestResourceThatChangesItsScope(t *testing.T) {
	w := newChangingRing(t, "v1beta1")
	w.start()
	w.changeling("v1beta1", w.Namespace, "before", ringtest.Placed{Shard: "a"})
	w.AtRest()

	w.define(changelings("Cluster", "v1beta1"), true)
	w.changeling("v1beta1", "", "after", ringtest.Placed{Shard: "a"})
	w.define(changelings("Namespaced", "v1beta1"), true)
	w.changeling("v1beta1", w.Namespace, "again", ringtest.Placed{Shard: "a"})
}

func TestTypoIsRepaired(t *testing.T) {
	w := newTestRing(t)
	right := w.Ring.Spec.Resources

	w.edit(func(s *v1alpha1.ClusterRingSpec) {
		s.Resources = []v1alpha1.RingResource{{Resource: "configmap",
			ControlledResources: []v1alpha1.ControlledResource{{Resource: "secret"}}}}
	})
	w.Join("a")

	cm := w.Main("main", "")
	child := w.Child(cm, "")

	w.start()

	w.says(v1alpha1.ReasonResourcesMissing, "configmap (did you mean configmaps?), secret (did you mean secrets?)")
	require.Empty(t, w.assignment().Resources, "a resource that was never served carries no labels")
	require.Empty(t, w.assignment().Fingerprint)

	w.edit(func(s *v1alpha1.ClusterRingSpec) { s.Resources = right })
	w.Eventually(ringtest.Placed{Shard: "a"}, cm, child)
	w.Assigned(v1alpha1.ReasonAllAssigned)
	w.AtRest()
	require.Equal(t, []v1alpha1.AssignedResource{{
		Resource: "configmaps", ControlledResources: right[0].ControlledResources,
		Fingerprint: w.Ring.Status.Assignment.Fingerprint,
	}}, w.Ring.Status.Assignment.Resources)
}

// The condition and an event report what a deleted ring waits for.
func TestDeletedRingSaysWhatItWaitsFor(t *testing.T) {
	w := newTestRing(t)
	w.Join("hung")

	cm := w.Main("held", "hung")

	w.start("--drain-timeout=1s")
	w.AtRest()
	w.delete()

	for _, text := range []string{
		"1 were not released in time, such as configmaps " + w.Namespace + "/held at shard hung",
		"1 draining (1 configmaps); shards were asked to release 1 at shard hung, ",
	} {
		w.says(v1alpha1.ReasonDeleting, text)
		w.announces(v1alpha1.ReasonDeleting, text)
	}

	w.handOver("hung", "", cm)
	w.gone()
}

// A ring and its resource are deleted at the same time, as when a controller and its API are removed. Objects that no
// longer exist cannot be acknowledged.
func TestDeletedRingWhoseResourceGoesToo(t *testing.T) {
	w := newChangingRing(t, "v1")
	w.start()
	w.changeling("v1", w.Namespace, "late", ringtest.Placed{Shard: "a"})
	w.AtRest()
	w.delete()
	w.changeling("v1", w.Namespace, "late", ringtest.Placed{Shard: "a", Drain: true})
	w.undefine()
	w.gone()
}

// TestManyResourcesThatLeave: the status can remember more resources than a ring may name. What an earlier version has
// written there, such as a typo, or a resource that cannot be sharded, is forgotten.
func TestManyResourcesThatLeave(t *testing.T) {
	w := newTestRing(t)
	w.Join("a")
	w.assignment()

	all := []v1alpha1.AssignedResource{{Resource: "configmaps"}, {Resource: "configmap"}, {Resource: "componentstatuses"}}

	for i := range 300 {
		name := fmt.Sprint("kind", i)
		all = append(all, v1alpha1.AssignedResource{Resource: name})
		all[0].ControlledResources = append(all[0].ControlledResources,
			v1alpha1.ControlledResource{Group: "apps", Resource: name})
	}

	earlier := clusterring.StatusWriter{Client: w.Client, Owner: name, Clock: realTime}
	require.NoError(t, earlier.Write(t.Context(), w.Ring, clusterring.StatusPart{
		Assignment: &v1alpha1.AssignmentStatus{Resources: all},
	}))
	w.start()
	w.says(v1alpha1.ReasonAllAssigned)
	w.AtRest()

	all = w.assignment().Resources
	require.Len(t, all, 1)
	require.Equal(t, []v1alpha1.ControlledResource{{Resource: "secrets"}}, all[0].ControlledResources)
	w.delete()
	w.gone()
}

// recorded returns what the status says about a main resource; nil if it says nothing.
func (w *testRing) recorded(resource string) *v1alpha1.AssignedResource {
	w.Helper()

	all := w.assignment().Resources
	if i := slices.IndexFunc(all, func(r v1alpha1.AssignedResource) bool { return r.Resource == resource }); i >= 0 {
		return &all[i]
	}

	return nil
}

// A resource that cannot be watched and patched, or does not exist, is reported, and leaves with the ring's spec, or
// with the ring.
func TestResourceWithoutVerbs(t *testing.T) {
	w := newTestRing(t)
	without := w.Ring.Spec.Resources
	with := slices.Concat(without, []v1alpha1.RingResource{{Resource: "componentstatuses"}, {Resource: "typo"}})

	w.Join("a")
	w.start()

	for _, edited := range [][]v1alpha1.RingResource{with, without, with} {
		w.edit(func(s *v1alpha1.ClusterRingSpec) { s.Resources = edited })

		if len(edited) == 1 {
			w.Assigned(v1alpha1.ReasonAllAssigned)
			w.AtRest()
		} else {
			w.says(v1alpha1.ReasonResourcesMissing,
				"componentstatuses cannot be sharded, because the API server serves it without the verbs patch, watch")
		}
	}

	w.Eventually(ringtest.Placed{Shard: "a"}, w.Main("other", ""))
	w.release("a")
	w.delete()
	w.gone()
}

// Users may label objects with names that no shard ever had. The status does not name them: nobody has to keep a Lease
// from them.
func TestMadeUpShards(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")

	dead := w.Main(w.NamesOf("a", 1)[0], "b")

	for i := range 30 {
		w.Main(fmt.Sprint("made-up-", i), fmt.Sprint("made-up-", i))
	}

	w.release("b")
	w.start()
	require.Eventually(t, func() bool {
		s := w.assignment()
		require.Subset(t, []string{"b"}, s.LostShards)

		return s.Unassigned >= 30
	}, 30*time.Second, time.Millisecond)
	w.Eventually(ringtest.Placed{Shard: "a"}, dead)
}

const travellers = "versions.example.clusterring.dev"

// traveller creates an object in one of its versions, and a Secret that it controls. It returns the object in both
// versions, and the Secret.
func (w *testRing) traveller(name string, in int) (all []client.Object) {
	w.Helper()

	for _, version := range []string{"v1alpha1", "v1"} {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(schema.GroupVersionKind{Group: travellers, Version: version, Kind: "Traveller"})
		u.SetNamespace(w.Namespace)
		u.SetName(name)

		all = append(all, u)
	}

	child := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "of-" + name}}
	require.NoError(w, w.Client.Create(w.Context(), all[in]))
	require.NoError(w, controllerutil.SetControllerReference(all[in], child, w.Client.Scheme()))
	require.NoError(w, w.Client.Create(w.Context(), child))

	return append(all, child)
}

// In a ring with several resources, one is served in two versions: an object is the same in both, has one key, and
// moves only when its shard changes.
func TestResourceOfSeveralVersions(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: travellers, Resource: "travellers"})
	})
	require.NoError(t, w.Plane.Install(t.Context(), "services/rebalancer/testdata/travellers.yaml"))
	w.Join("a", "b", "c")

	var moving [][]client.Object

	of := named(travellers, "Traveller", w.Namespace)
	stays := w.traveller(w.fixture.NamesOf("a", 1, w.owners(of))[0], 0)

	for i, name := range w.fixture.NamesOf("c", 4, w.owners(of)) {
		moving = append(moving, w.traveller(name, i%2))
	}

	w.start()
	w.Eventually(ringtest.Placed{Shard: "a"}, stays...)

	for _, all := range moving {
		w.Eventually(ringtest.Placed{Shard: "c"}, all...)
	}

	w.AtRest()

	// A shard leaves, and its objects move. It comes back and gets them back. Nobody writes the others.
	versions := w.Versions(stays...)

	w.release("c")

	other := w.owners(of)

	for _, all := range moving {
		w.Eventually(ringtest.Placed{Shard: other(all[0].GetName())}, all...)
	}

	w.AtRest()
	w.Join("c")

	for _, all := range moving { // the shard may know the object in either version
		from := other(all[0].GetName())
		w.Eventually(ringtest.Placed{Shard: from, Drain: true}, all[0])
		w.handOver(from, "c", all[1], all[2])
		w.Eventually(ringtest.Placed{Shard: "c"}, all[0])
	}

	w.AtRest()
	require.Equal(t, versions, w.Versions(stays...))
}
