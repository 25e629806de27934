package rebalancer

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/key"
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

func (w *testRing) undefine() {
	require.NoError(w, client.IgnoreNotFound(w.Client.Delete(context.Background(),
		definitionNamed("changelings."+changing))))
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
		require.Contains(t, w.assignment().Resources, v1alpha1.AssignedResource{Group: changing, Resource: "changelings"},
			"it should be served in another version, and not be gone")
		w.Acknowledge(u)
	}

	require.Eventually(t, func() bool {
		return len(w.assignment().Resources) == 1
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
		r.Spec.Resources = []v1alpha1.RingResource{{Resource: "configmap",
			ControlledResources: []v1alpha1.ControlledResource{{Resource: "secret"}}}}
	})
	w.Join("a")

	cm := w.Main("main", "")
	child := w.Child(cm, "")

	w.start()

	w.says(v1alpha1.ReasonResourcesMissing, "configmap (did you mean configmaps?), secret (did you mean secrets?)")
	require.Empty(t, w.assignment().Resources, "a resource that was never served carries no labels")
	require.Empty(t, w.assignment().Fingerprint)

	w.edit(func(s *v1alpha1.ClusterRingSpec) {
		s.Resources = []v1alpha1.RingResource{{Resource: "configmaps",
			ControlledResources: []v1alpha1.ControlledResource{{Resource: "secrets"}}}}
	})
	w.Eventually(ringtest.Placed{Shard: "a"}, cm, child)
	w.Assigned(v1alpha1.ReasonAllAssigned)
	w.AtRest()
	require.Equal(t, []v1alpha1.AssignedResource{{
		Resource: "configmaps", ControlledResources: []v1alpha1.ControlledResource{{Resource: "secrets"}},
		Fingerprint: w.Ring.Status.Assignment.Fingerprint,
	}}, w.Ring.Status.Assignment.Resources)
}

// An earlier version may have written a typo, or a resource that cannot be sharded, into the status.
func TestTypoThatIsRemembered(t *testing.T) {
	w := newTestRing(t)
	w.Join("a")
	w.assignment()

	earlier := clusterring.StatusWriter{Client: w.Client, Owner: name, Clock: realTime}
	require.NoError(t, earlier.Write(t.Context(), w.Ring, clusterring.StatusPart{Assignment: &v1alpha1.AssignmentStatus{
		Resources: []v1alpha1.AssignedResource{{Resource: "configmap"}, {Resource: "componentstatuses"},
			{Resource: "configmaps"}},
	}}))
	w.start()
	w.Assigned(v1alpha1.ReasonAllAssigned)
	w.AtRest()

	all := w.assignment().Resources
	require.Len(t, all, 1)
	require.Equal(t, "configmaps", all[0].Resource)
	w.delete()
	w.gone()
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
	w.release("a")
	w.delete()
	w.gone()
	w.Eventually(ringtest.Placed{}, cm)
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

// The ring waits only for the resources that keep it. The message names an object, the permission, and what helps.
func TestDeletedRingThatMayNotWrite(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = []v1alpha1.RingResource{{Resource: "configmaps"}, {Resource: "limitranges"}}
	})
	w.Join("a")

	limits := w.limits("a")

	w.start()
	w.AtRest()
	w.delete()
	w.says(v1alpha1.ReasonDeleting,
		"(1 limitranges); requests for 1 have failed for seconds, such as limitranges "+w.Namespace+"/kept: ",
		`cannot patch resource "limitranges"`, "(1 of limitranges, since ", "grant get, list, watch and patch")
	require.Eventually(t, func() bool {
		return w.recorded("configmaps") == nil && w.recorded("limitranges") != nil
	}, noticed, 20*time.Millisecond, "no ConfigMap has a label")

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
	unstructured.RemoveNestedField(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "spec",
		"properties", //nolint:forcetypeassert // it is one
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

	w.says(v1alpha1.ReasonAssignmentFailed, "spec.namespaceSelector")
	require.Equal(t, ringtest.Placed{Shard: "nobody"}, w.Placed(cm), "no object should be released because of that")

	w.delete()
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
			all := w.assignment().Resources

			return len(all) == 1 && len(all[0].ControlledResources) == n
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
		"", "coordination.k8s.io", v1alpha1.GroupVersion.Group, "admissionregistration.k8s.io",
		"events.k8s.io", "rbac.authorization.k8s.io",
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

// limits creates a LimitRange at a shard, which the rebalancer of the tests may not write.
func (w *testRing) limits(shard string) *corev1.LimitRange {
	w.Helper()

	limits := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "kept",
		Labels: w.Labels(shard)}}
	require.NoError(w, w.Client.Create(w.Context(), limits))

	return limits
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

// Whatever keeps objects of one resource from their places, the status says of another one that its objects are there.
func TestBadResourceKeepsNoOtherFromConverging(t *testing.T) {
	for what, tc := range map[string]struct {
		others    []v1alpha1.RingResource
		prepare   func(w *testRing)
		good, bad string
	}{
		"writes are refused": {
			prepare: func(w *testRing) { w.limits("gone") },
			good:    "configmaps", bad: "limitranges",
		},
		"a drain is late": {
			prepare: func(w *testRing) { w.Main(w.NamesOf("a", 1)[0], "b") },
			good:    "limitranges", bad: "configmaps",
		},
		"lists are refused": {
			others:  []v1alpha1.RingResource{{Group: "discovery.k8s.io", Resource: "endpointslices"}},
			prepare: func(*testRing) {},
			good:    "configmaps", bad: "endpointslices",
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
				r.Spec.Resources = append([]v1alpha1.RingResource{{Resource: "configmaps"}, {Resource: "limitranges"}},
					tc.others...)
			})
			w.Join("a", "b")
			tc.prepare(w)
			w.start("--drain-timeout=1s")

			settled := func() {
				t.Helper()

				require.Eventually(t, func() bool {
					r := w.recorded(tc.good)

					return r != nil && r.Fingerprint == w.View().Fingerprint()
				}, noticed, 20*time.Millisecond, "objects of %s are in their places: %+v", tc.good, w.Ring.Status.Assignment)
				require.Empty(t, w.recorded(tc.bad).Fingerprint)
				require.Empty(t, w.Ring.Status.Assignment.Fingerprint)
			}
			settled()
			w.Join("c")
			settled()
		})
	}
}

var counted = regexp.MustCompile(`(?m)^apiserver_request_total{.*resource="componentstatuses".*} (\S+)$`)

// asked returns how many requests for componentstatuses the API server has answered.
func (w *testRing) asked() (n int) {
	w.Helper()

	c, err := kubernetes.NewForConfig(w.Plane.Config)
	require.NoError(w, err)

	body, err := c.RESTClient().Get().AbsPath("/metrics").DoRaw(w.Context())
	require.NoError(w, err)

	for _, m := range counted.FindAllStringSubmatch(string(body), -1) {
		requests, err := strconv.ParseFloat(m[1], 64)
		require.NoError(w, err)

		n += int(requests)
	}

	return n
}

// A resource that cannot be watched and patched is reported, costs nothing, and leaves with the ring's spec, or with
// the ring.
func TestResourceWithoutVerbs(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Resource: "componentstatuses"})
	})
	w.Join("a")

	before := w.asked()

	w.start()
	require.Contains(t, w.Assigned(v1alpha1.ReasonResourcesMissing).Message,
		"componentstatuses cannot be sharded, because the API server serves it without the verbs patch, watch")
	w.Eventually(ringtest.Placed{Shard: "a"}, w.Main("other", ""))
	require.Equal(t, before, w.asked(), "nobody should ask for what is known")

	w.edit(func(s *v1alpha1.ClusterRingSpec) { s.Resources = s.Resources[:1] })
	w.Assigned(v1alpha1.ReasonAllAssigned)
	w.AtRest()

	w.edit(func(s *v1alpha1.ClusterRingSpec) {
		s.Resources = append(s.Resources, v1alpha1.RingResource{Resource: "componentstatuses"})
	})
	w.Assigned(v1alpha1.ReasonResourcesMissing)
	w.release("a")
	w.delete()
	w.gone()
	require.Equal(t, before, w.asked())
}

// The API accepts rings with 256 kinds, and the rebalancer works on all that are served.
func TestManyKinds(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		for i := len(r.Spec.Resources); i < 256; i++ {
			r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: "kinds.example.com",
				Resource: fmt.Sprint("kind", i)})
		}
	})
	w.Join("a")
	w.start()

	main := w.Main("main", "")
	w.Eventually(ringtest.Placed{Shard: "a"}, main, w.Child(main, ""))
	w.Assigned(v1alpha1.ReasonResourcesMissing)
}

// A resource that several main resources list as controlled is one resource of the ring.
func TestControlledByTwo(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{
			Group: "networking.k8s.io", Resource: "ingressclasses", ControlledResources: r.Spec.Resources[0].ControlledResources,
		})
	})
	w.Join("a")
	w.start()

	class := w.class(w.Namespace, nil)
	of := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "of-class"}}
	require.NoError(t, controllerutil.SetControllerReference(class, of, w.Client.Scheme()))
	require.NoError(t, w.Client.Create(t.Context(), of))

	main := w.Main("main", "")
	w.Eventually(ringtest.Placed{Shard: "a"}, class, of, main, w.Child(main, ""))
	w.AtRest()

	w.edit(func(s *v1alpha1.ClusterRingSpec) { s.Resources[0].ControlledResources = nil })
	w.AtRest()
	require.Equal(t, ringtest.Placed{Shard: "a"}, w.Placed(of))
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

	said := sets.New[string]()

	require.Eventually(t, func() bool {
		require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))

		s := w.Ring.Status.Assignment
		if s == nil {
			return false
		}

		said.Insert(s.LostShards...)

		return s.Unassigned >= 30
	}, 30*time.Second, time.Millisecond)
	w.Eventually(ringtest.Placed{Shard: "a"}, dead)
	require.Empty(t, said.Delete("b").UnsortedList())
}

const travellers = "versions.example.clusterring.dev"

// traveller is an object in both of its versions, and a Secret that it controls.
func (w *testRing) traveller(name string) (all []client.Object) {
	for _, version := range []string{"v1alpha1", "v1"} {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(schema.GroupVersionKind{Group: travellers, Version: version, Kind: "Traveller"})
		u.SetNamespace(w.Namespace)
		u.SetName(name)

		all = append(all, u)
	}

	return append(all, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "of-" + name}})
}

// In a ring with several resources, one is served in two versions: an object is the same in both, has one key, and
// moves only when its shard changes.
func TestResourceOfSeveralVersions(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: travellers, Resource: "travellers"})
	})
	require.NoError(t, w.Plane.Install(t.Context(), "services/rebalancer/testdata/travellers.yaml"))
	w.Join("a", "b", "c")

	owner := func(name string) string {
		shard, ok := w.View().Owner(key.Key{Group: travellers, Kind: "Traveller", Namespace: w.Namespace, Name: name})
		require.True(t, ok)

		return shard
	}
	all, at := map[string][]client.Object{}, map[string]string{}

	for i := range 24 { // enough that some belong to each shard
		name := fmt.Sprint("traveller-", i)
		objs := w.traveller(name)
		all[name], at[name] = objs, owner(name)
		require.NoError(t, w.Client.Create(t.Context(), objs[i%2]))
		require.NoError(t, controllerutil.SetControllerReference(objs[i%2], objs[2], w.Client.Scheme()))
		require.NoError(t, w.Client.Create(t.Context(), objs[2]))
	}

	w.start()

	// A shard leaves, and its objects move. It comes back and gets them back. Nobody writes the others.
	var staying []client.Object

	for name, objs := range all {
		w.Eventually(ringtest.Placed{Shard: at[name]}, objs...)

		if at[name] != "c" {
			staying = append(staying, objs...)
		}
	}

	w.AtRest()

	versions := w.Versions(staying...)

	w.release("c")

	for name, objs := range all {
		w.Eventually(ringtest.Placed{Shard: owner(name)}, objs...)
	}

	w.AtRest()
	require.Equal(t, versions, w.Versions(staying...))

	before := map[string]string{}
	for name := range all {
		before[name] = owner(name)
	}

	w.Join("c")

	for name, objs := range all {
		if at[name] == "c" { // the shard may know the object in either version
			w.Eventually(ringtest.Placed{Shard: before[name], Drain: true}, objs[:2]...)
			w.handOver(before[name], "c", objs[1], objs[2])
			w.Eventually(ringtest.Placed{Shard: "c"}, objs[0])
		}
	}

	w.AtRest()
	require.Equal(t, versions, w.Versions(staying...))
}
