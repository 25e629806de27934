package rebalancer

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

const tenant = "example.org/tenant"

// withKey gives the ConfigMaps of the ring a key, and shards IngressClasses with the same key, which are cluster-scoped.
func withKey(k v1alpha1.ObjectKey) func(*v1alpha1.ClusterRing) {
	return func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources[0].Key = &k
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: "networking.k8s.io", Resource: "ingressclasses", Key: &k})
	}
}

// tenantOf returns a tenant whose objects belong to the shard.
func (w *testRing) tenantOf(shard string) string {
	w.Helper()

	for i := range 1000 {
		name := fmt.Sprint("tenant-", i)
		if owner, _ := w.View().Owner(key.OfLabel(tenant, name)); owner == shard {
			return name
		}
	}

	w.Fatalf("shard %s owns no tenant", shard)

	return ""
}

// keyedClass creates an IngressClass, which lasts until the test ends.
func (w *testRing) keyedClass(name string, labels map[string]string) *networkingv1.IngressClass {
	w.Helper()

	c := &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: w.Namespace + "-" + name, Labels: labels}, Spec: networkingv1.IngressClassSpec{Controller: "example.com/test"},
	}
	require.NoError(w, w.Client.Create(w.Context(), c))
	w.Cleanup(func() { _ = w.Client.Delete(context.Background(), c) })

	return c
}

// relabel changes labels of an object; an empty value removes one.
func (w *testRing) relabel(o client.Object, kv ...string) {
	w.Helper()

	base := o.DeepCopyObject().(client.Object) //nolint:forcetypeassert // it is one

	labels := map[string]string{}
	maps.Copy(labels, o.GetLabels())

	for i := 0; i < len(kv); i += 2 {
		if labels[kv[i]] = kv[i+1]; kv[i+1] == "" {
			delete(labels, kv[i])
		}
	}

	o.SetLabels(labels)
	require.NoError(w, w.Client.Patch(w.Context(), o, client.MergeFrom(base)))
}

// keysFound waits until the condition KeysFound has a reason, and returns it.
func (w *testRing) keysFound(reason string) metav1.Condition {
	w.Helper()

	var c *metav1.Condition

	require.Eventually(w, func() bool {
		require.NoError(w, w.Client.Get(w.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))
		c = meta.FindStatusCondition(w.Ring.Status.Conditions, v1alpha1.ConditionKeysFound)

		return c != nil && c.Reason == reason
	}, noticed, noticed/1000, "the condition should have the reason %s; last: %+v", reason, &c)

	return *c
}

func TestObjectsOfOneLabelAreAtOneShard(t *testing.T) {
	w := newTestRing(t, withKey(v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: tenant}))
	w.Join("a", "b", "c")
	w.start()

	ofB := map[string]string{tenant: w.tenantOf("b")}

	var together []client.Object

	for i := range 5 {
		cm := w.Main(fmt.Sprint("one-", i), "")
		w.relabel(cm, tenant, ofB[tenant])
		together = append(together, w.keyedClass(fmt.Sprint(i), ofB))
	}

	w.Eventually(ringtest.Placed{Shard: "b"}, together...)
	w.AtRest()
}

// A change of the label drains the object, which then moves after what follows it. The test is the assigner.
func TestChangeOfTheLabelMoves(t *testing.T) {
	w := newTestRing(t, withKey(v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: tenant}))
	w.Join("a", "b", "c")

	owner := w.Main("owner", "b")
	w.relabel(owner, tenant, w.tenantOf("b"))
	child := w.Child(owner, "b")

	w.start()
	w.AtRest()
	require.Equal(t, ringtest.Placed{Shard: "b"}, w.Placed(owner))
	w.keysFound(v1alpha1.ReasonAllKeysFound)

	w.relabel(owner, tenant, w.tenantOf("c"), contract.DrainLabel(w.Ring.Name), contract.DrainValue)
	w.Assigned(v1alpha1.ReasonMoving)
	require.Equal(t, ringtest.Placed{Shard: "b", Drain: true}, w.Placed(owner), "until its shard has released it")
	require.Equal(t, ringtest.Placed{Shard: "b"}, w.Placed(child))

	w.Acknowledge(owner)
	w.Eventually(ringtest.Placed{Shard: "c"}, child, owner)
	w.AtRest()

	// A drain is withdrawn if the label changes back.
	w.relabel(owner, tenant, w.tenantOf("a"), contract.DrainLabel(w.Ring.Name), contract.DrainValue)
	w.relabel(owner, tenant, w.tenantOf("c"))
	w.Eventually(ringtest.Placed{Shard: "c"}, owner)

	// What the rebalancer remembers of the owner is not old.
	require.NoError(t, w.Client.Delete(t.Context(), child))
	later := w.Child(owner, "")
	w.Eventually(ringtest.Placed{Shard: "c"}, later)
}

// A drain that the webhook has missed is found when something follows the object, or by the next pass.
func TestChangeOfTheLabelThatAdmissionMissed(t *testing.T) {
	w := newTestRing(t, withKey(v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: tenant}))
	w.Join("a", "b")

	owner, other := w.Main("owner", "b"), w.Main("other", "b")
	w.relabel(owner, tenant, w.tenantOf("b"))
	w.relabel(other, tenant, w.tenantOf("b"))
	w.start()
	w.AtRest()

	w.relabel(owner, tenant, w.tenantOf("a"))
	child := w.Child(owner, "")
	w.Eventually(ringtest.Placed{Shard: "b"}, child)
	w.Eventually(ringtest.Placed{Shard: "b", Drain: true}, owner)
	w.Acknowledge(owner)
	w.Eventually(ringtest.Placed{Shard: "a"}, owner, child)

	w.relabel(other, tenant, w.tenantOf("a"))
	w.Join("c") // a change of the shards leads to a pass
	w.Eventually(ringtest.Placed{Shard: "b", Drain: true}, other)
}

func TestObjectsWithoutTheLabelAreReported(t *testing.T) {
	w := newTestRing(t, withKey(v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: tenant}))
	w.Join("a", "b")

	bare, labelled := w.Main("bare", ""), w.Main("labelled", "")
	w.relabel(labelled, tenant, w.tenantOf("a"))
	w.start()

	w.Eventually(ringtest.Placed{Shard: w.Owner("bare")}, bare)
	w.Eventually(ringtest.Placed{Shard: "a"}, labelled)

	c := w.keysFound(v1alpha1.ReasonLabelsMissing)
	require.Equal(t, metav1.ConditionFalse, c.Status)
	require.Contains(t, c.Message, "1 objects of configmaps lack the label example.org/tenant, such as configmaps "+w.Namespace+"/bare;")
	w.AtRest()
}

// The key of a namespace is that of the Namespace object. Cluster-scoped objects have no namespace, and the ring says so.
func TestObjectsOfOneNamespaceAreAtOneShard(t *testing.T) {
	w := newTestRing(t, withKey(v1alpha1.ObjectKey{Type: v1alpha1.KeyNamespace}))
	w.Join("a", "b", "c")
	w.start()

	want, _ := w.View().Owner(key.OfNamespace(w.Namespace))

	for i := range 6 {
		cm := w.Main(fmt.Sprint("one-", i), "")
		w.Eventually(ringtest.Placed{Shard: want}, cm, w.Child(cm, ""))
	}

	class := w.keyedClass("by-name", nil)
	byName, _ := w.View().Owner(key.Key{Group: "networking.k8s.io", Kind: "IngressClass", Name: class.Name})
	w.Eventually(ringtest.Placed{Shard: byName}, class)

	require.Contains(t, w.keysFound(v1alpha1.ReasonNotNamespaced).Message, "the key of ingressclasses.networking.k8s.io is the namespace, but they are cluster-scoped")
}

// A change of the key in the ring moves objects, with drains. The ring has not converged until they have moved.
func TestChangeOfTheKeyMoves(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")

	byNamespace, _ := w.View().Owner(key.OfNamespace(w.Namespace))
	other := map[string]string{"a": "b", "b": "a"}[byNamespace]
	moves := w.Main(w.NamesOf(other, 1)[0], other)
	child := w.Child(moves, other)
	stays := w.Main(w.NamesOf(byNamespace, 1)[0], byNamespace)

	w.start()
	w.AtRest()
	require.Nil(t, meta.FindStatusCondition(w.Ring.Status.Conditions, v1alpha1.ConditionKeysFound))

	version := w.Versions(stays)
	w.edit(func(s *v1alpha1.ClusterRingSpec) {
		s.Resources[0].Key = &v1alpha1.ObjectKey{Type: v1alpha1.KeyNamespace}
	})
	w.Eventually(ringtest.Placed{Shard: other, Drain: true}, moves)
	require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))
	require.Empty(t, w.Ring.Status.Assignment.Fingerprint, "the ring has not converged")
	require.Equal(t, v1alpha1.KeyNamespace, w.Ring.Status.Assignment.Resources[0].Key.Type)

	w.Acknowledge(moves)
	w.Eventually(ringtest.Placed{Shard: byNamespace}, moves, child)
	w.AtRest()
	require.Equal(t, version, w.Versions(stays))
	w.keysFound(v1alpha1.ReasonAllKeysFound)

	w.edit(func(s *v1alpha1.ClusterRingSpec) { s.Resources[0].Key = nil })
	w.Eventually(ringtest.Placed{Shard: byNamespace, Drain: true}, moves)
	w.Acknowledge(moves)
	w.Eventually(ringtest.Placed{Shard: other}, moves, child)
	w.AtRest()
	require.Nil(t, meta.FindStatusCondition(w.Ring.Status.Conditions, v1alpha1.ConditionKeysFound))
}

// The API server refuses keys that mean nothing.
func TestKeysAreValidated(t *testing.T) {
	w := newTestRing(t)

	for spec, message := range map[string]string{
		`{"type":"Label"}`:                                                "a key of type Label needs the key of the label",
		`{"type":"Name","label":"a"}`:                                     "no other key has one",
		`{"type":"Namespace","label":"a"}`:                                "no other key has one",
		`{"type":"Uid"}`:                                                  "supported values",
		`{"label":"a"}`:                                                   "type: Required value",
		`{"type":"Label","label":"a b"}`:                                  "the key of a label is a name",
		`{"type":"Label","label":"a/b/c"}`:                                "the key of a label is a name",
		`{"type":"Label","label":"-a"}`:                                   "the key of a label is a name",
		`{"type":"Label","label":"A.com/b"}`:                              "the key of a label is a name",
		`{"type":"Label","label":"` + tooLong + `"}`:                      "the key of a label is a name",
		`{"type":"Label","label":"` + contract.ShardLabel("other") + `"}`: "labels of ClusterRing itself",
		`{"type":"Label","label":"` + contract.LabelClusterRing + `"}`:    "labels of ClusterRing itself",
	} {
		err := w.Client.Patch(t.Context(), w.Ring.DeepCopy(), client.RawPatch(types.MergePatchType,
			[]byte(`{"spec":{"resources":[{"resource":"configmaps","key":`+spec+`}]}}`)))
		require.ErrorContains(t, err, message, spec)
	}

	for _, label := range []string{"a", "tenant", "example.com/tenant", "kubernetes.io/metadata.name", "a-b.c/A_b.1"} {
		require.NoError(t, w.Client.Patch(t.Context(), w.Ring, client.RawPatch(types.MergePatchType,
			[]byte(`{"spec":{"resources":[{"resource":"configmaps","key":{"type":"Label","label":"`+label+`"}}]}}`))), label)
	}
}

// tooLong is the name of a label that is too long.
const tooLong = "a23456789-123456789-123456789-123456789-123456789-123456789-1234"
