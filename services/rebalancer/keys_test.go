package rebalancer

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// withKey gives the ConfigMaps of the ring a key, and shards IngressClasses with the same key, which are
// cluster-scoped.
func withKey(k v1alpha1.ObjectKey) func(*v1alpha1.ClusterRing) {
	return func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources[0].Key = &k
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: "networking.k8s.io",
			Resource: "ingressclasses", Key: &k})
	}
}

// tenantOf returns a tenant whose objects belong to the shard.
func (w *testRing) tenantOf(shard string) string {
	w.Helper()

	of := func(name string) key.Key { return key.OfLabel(tenant, name) }

	return w.fixture.NamesOf(shard, 1, w.owners(of))[0]
}

// relabel changes labels of an object; an empty value removes one.
func (w *testRing) relabel(o client.Object, kv ...string) {
	w.Helper()

	labels := map[string]any{}

	for i := 0; i < len(kv); i += 2 {
		if labels[kv[i]] = kv[i+1]; kv[i+1] == "" {
			labels[kv[i]] = nil
		}
	}

	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	require.NoError(w, err)
	require.NoError(w, w.Client.Patch(w.Context(), o, client.RawPatch(types.MergePatchType, body)))
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

	ofB := w.tenantOf("b")

	var together []client.Object

	for i := range 5 {
		cm := w.Main(fmt.Sprint("one-", i), "")
		w.relabel(cm, tenant, ofB)
		together = append(together, w.class(fmt.Sprint(w.Namespace, "-", i), map[string]string{tenant: ofB}))
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
	w.handOver("b", "a", owner, child)

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
	require.Contains(t, c.Message,
		"1 objects of configmaps lack the label example.org/tenant, such as configmaps "+w.Namespace+"/bare;")
	w.AtRest()
}

// The key of a namespace is that of the Namespace object. Cluster-scoped objects have no namespace, and the ring says
// so.
func TestObjectsOfOneNamespaceAreAtOneShard(t *testing.T) {
	w := newTestRing(t, withKey(v1alpha1.ObjectKey{Type: v1alpha1.KeyNamespace}))
	w.Join("a", "b", "c")
	w.start()

	want, _ := w.View().Owner(key.OfNamespace(w.Namespace))

	for i := range 6 {
		cm := w.Main(fmt.Sprint("one-", i), "")
		w.Eventually(ringtest.Placed{Shard: want}, cm, w.Child(cm, ""))
	}

	class := w.class(w.Namespace, nil)
	byName, _ := w.View().Owner(key.Key{Group: "networking.k8s.io", Kind: "IngressClass", Name: class.Name})
	w.Eventually(ringtest.Placed{Shard: byName}, class)

	require.Contains(t, w.keysFound(v1alpha1.ReasonNotNamespaced).Message,
		"the key of ingressclasses.networking.k8s.io is the namespace, but they are cluster-scoped")
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
	require.Empty(t, w.assignment().Fingerprint, "the ring has not converged")
	require.Equal(t, v1alpha1.KeyNamespace, w.assignment().Resources[0].Key.Type)

	w.Acknowledge(moves)
	w.Eventually(ringtest.Placed{Shard: byNamespace}, moves, child)
	w.AtRest()
	require.Equal(t, version, w.Versions(stays))
	w.keysFound(v1alpha1.ReasonAllKeysFound)

	w.edit(func(s *v1alpha1.ClusterRingSpec) { s.Resources[0].Key = nil })
	w.handOver(byNamespace, other, moves, child)
	w.AtRest()
	require.Nil(t, meta.FindStatusCondition(w.Ring.Status.Conditions, v1alpha1.ConditionKeysFound))
}

// The API server refuses keys and selectors that mean nothing, and labels of ClusterRing itself.
func TestRingsAreValidated(t *testing.T) {
	w := newTestRing(t)
	patch := func(spec string, as ...any) error {
		return w.Client.Patch(t.Context(), w.Ring.DeepCopy(),
			client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":`+spec+`}`, as...)))
	}
	withKey := func(key string) error { return patch(`{"resources":[{"resource":"configmaps","key":%s}]}`, key) }
	withLabel := func(label string) error { return withKey(`{"type":"Label","label":"` + label + `"}`) }

	for key, message := range map[string]string{
		`{"type":"Label"}`:                 "a key of type Label needs the key of the label",
		`{"type":"Name","label":"a"}`:      "no other key has one",
		`{"type":"Namespace","label":"a"}`: "no other key has one",
		`{"type":"Uid"}`:                   "supported values",
		`{"label":"a"}`:                    "type: Required value",
	} {
		require.ErrorContains(t, withKey(key), message, key)
	}

	for _, label := range []string{"a b", "a/b/c", "-a", "A.com/b", strings.Repeat("a", 64)} {
		require.ErrorContains(t, withLabel(label), "the key of a label is a name", label)
	}

	for _, label := range []string{contract.ShardLabel("other"), contract.LabelClusterRing} {
		require.ErrorContains(t, withLabel(label), "labels of ClusterRing itself", label)
	}

	for _, label := range []string{"a", "tenant", "example.com/tenant", "kubernetes.io/metadata.name", "a-b.c/A_b.1"} {
		require.NoError(t, withLabel(label), label)
	}

	many := `"a":""`
	for i := range 16 { // more requirements than the assigner may register
		many += fmt.Sprintf(`,"l%d":""`, i)
	}

	for _, selector := range []string{
		`{"matchLabels":{"` + w.Ring.LabelKeys().Shard + `":"a"}}`,
		`{"matchExpressions":[{"key":"` + w.Ring.LabelKeys().Drain + `","operator":"DoesNotExist"}]}`,
		`{"matchExpressions":[{"key":"a","operator":"Gt","values":["1"]}]}`,
		`{"matchExpressions":[{"key":"a","operator":"In"}]}`,
		`{"matchLabels":{` + many + `}}`,
	} {
		require.True(t, apierrors.IsInvalid(patch(`{"objectSelector":%s}`, selector)), selector)
	}
}

const operatedBy = "example.org/operator"

// selecting lets the ring shard the main objects of one operator.
func selecting(value string) func(*v1alpha1.ClusterRing) {
	return func(r *v1alpha1.ClusterRing) {
		r.Spec.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{operatedBy: value}}
	}
}

// of creates a ConfigMap of an operator at a shard; with "" it is unassigned.
func (w *testRing) of(value, name, shard string) *corev1.ConfigMap {
	w.Helper()

	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name,
		Labels: map[string]string{operatedBy: value}}}
	if shard != "" {
		cm.Labels[w.Ring.LabelKeys().Shard] = shard
	}

	require.NoError(w, w.Client.Create(w.Context(), cm))

	return cm
}

func TestOnlySelectedObjectsGetShards(t *testing.T) {
	w := newTestRing(t, selecting("ours"))
	w.Join("a")

	theirs, bare := w.of("theirs", "theirs", ""), w.Main("bare", "")
	foreign := []client.Object{theirs, bare, w.Child(theirs, ""), w.Child(bare, "")}
	before := w.Versions(foreign...)

	w.start()

	ours := w.of("ours", "ours", "")
	w.Eventually(ringtest.Placed{Shard: "a"}, ours, w.Child(ours, ""))

	later := w.of("theirs", "later", "")
	foreign = append(foreign, later, w.Child(later, ""))
	before = append(before, w.Versions(foreign[4:]...)...)

	w.AtRest()
	require.Equal(t, before, w.Versions(foreign...), "the ring does not touch what it does not select")
}

// TestObjectThatComesIntoTheSelection: nothing has reported its children when they were not part of the ring.
func TestObjectThatComesIntoTheSelection(t *testing.T) {
	w := newTestRing(t, selecting("ours"))
	w.Join("a")
	w.start()

	owner := w.of("theirs", "coming", "")
	child := w.Child(owner, "")
	known := w.of("ours", "known", "")
	w.Eventually(ringtest.Placed{Shard: "a"}, known, w.Child(known, ""))
	w.AtRest()
	require.Equal(t, ringtest.Placed{}, w.Placed(child))

	w.relabel(owner, operatedBy, "ours")
	w.Eventually(ringtest.Placed{Shard: "a"}, owner)
	require.Equal(t, ringtest.Placed{Shard: "a"}, w.Placed(child), "children go first")

	w.relabel(owner, operatedBy, "")
	w.handOver("a", "", owner, child)
	w.AtRest()
}

func TestSelectorThatChanges(t *testing.T) {
	w := newTestRing(t, selecting("ours"))
	w.Join("a")
	w.start()

	ours, theirs := w.of("ours", "ours", ""), w.of("theirs", "theirs", "")
	child, other := w.Child(ours, ""), w.Child(theirs, "")
	w.Eventually(ringtest.Placed{Shard: "a"}, ours, child)
	w.AtRest()

	w.edit(func(s *v1alpha1.ClusterRingSpec) { s.ObjectSelector.MatchLabels[operatedBy] = "theirs" })
	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, ours)
	w.Eventually(ringtest.Placed{Shard: "a"}, other, theirs)
	require.Equal(t, ringtest.Placed{Shard: "a"}, w.Placed(child))
	w.Acknowledge(ours)
	w.Eventually(ringtest.Placed{}, ours, child)
	w.AtRest()

	w.edit(func(s *v1alpha1.ClusterRingSpec) { s.ObjectSelector = &metav1.LabelSelector{} })
	w.Eventually(ringtest.Placed{Shard: "a"}, ours, child, theirs, other, w.Main("bare", ""))
	w.AtRest()

	w.edit(func(s *v1alpha1.ClusterRingSpec) {
		s.ObjectSelector.MatchLabels = map[string]string{"not a label": "x"}
	})
	w.says(v1alpha1.ReasonAssignmentFailed, "spec.objectSelector")
	require.Equal(t, ringtest.Placed{Shard: "a"}, w.Placed(ours), "an invalid selector changes nothing")

	w.release("a")
	w.delete()
	w.gone()
	w.Eventually(ringtest.Placed{}, ours, child, theirs, other)
}

// TestTwoRingsShareAKind: two operators side by side. An object that changes its operator is released by one before the
// other's shard label is all it has.
func TestTwoRingsShareAKind(t *testing.T) {
	w := newTestRing(t, selecting("ours"))
	w.Join("a")
	w.start()

	other := newTestRing(t, selecting("theirs"), func(r *v1alpha1.ClusterRing) {
		r.Spec.NamespaceSelector = w.Ring.Spec.NamespaceSelector.DeepCopy()
	})
	other.Join("z")

	ours, theirs := w.of("ours", "ours", ""), w.of("theirs", "theirs", "")
	w.Eventually(ringtest.Placed{Shard: "a"}, ours)
	other.Eventually(ringtest.Placed{Shard: "z"}, theirs)
	require.Equal(t, ringtest.Placed{}, w.Placed(theirs))
	require.Equal(t, ringtest.Placed{}, other.Placed(ours))

	w.relabel(ours, operatedBy, "theirs")
	w.handOver("a", "", ours)
	other.Eventually(ringtest.Placed{Shard: "z"}, ours)
}
