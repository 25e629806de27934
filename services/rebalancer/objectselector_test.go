package rebalancer

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

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

	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name, Labels: map[string]string{operatedBy: value}}}
	if shard != "" {
		cm.Labels[w.Ring.LabelKeys().Shard] = shard
	}

	require.NoError(w, w.Client.Create(w.Context(), cm))

	return cm
}

// reselect changes the selector of the ring.
func (w *testRing) reselect(change func(*v1alpha1.ClusterRing)) {
	w.Helper()
	require.NoError(w, w.Client.Get(w.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))

	base := w.Ring.DeepCopy()
	change(w.Ring)
	require.NoError(w, w.Client.Patch(w.Context(), w.Ring, client.MergeFrom(base)))
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

// TestObjectThatLeavesTheSelection: its shard releases it first, and its children lose their labels after it, although something else drains for ever.
func TestObjectThatLeavesTheSelection(t *testing.T) {
	w := newTestRing(t, selecting("ours"))
	w.Join("a", "b")

	leaving := w.of("ours", w.NamesOf("a", 1)[0], "a")
	child := w.Child(leaving, "a")
	stuck := w.of("ours", w.NamesOf("b", 1)[0], "b")

	w.start()
	w.AtRest()
	w.relabel(stuck, operatedBy, "theirs")
	w.Eventually(ringtest.Placed{Shard: "b", Drain: true}, stuck)

	w.relabel(leaving, operatedBy, "theirs")
	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, leaving)
	require.Equal(t, ringtest.Placed{Shard: "a"}, w.Placed(child), "the child should wait for its owner")

	w.Acknowledge(leaving)
	w.Eventually(ringtest.Placed{}, leaving, child) // long before the next audit
	// It comes back while its shard is asked to release it.
	w.relabel(stuck, operatedBy, "ours")
	w.Eventually(ringtest.Placed{Shard: "b"}, stuck)
	w.AtRest()
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
	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, owner)
	w.Acknowledge(owner)
	w.Eventually(ringtest.Placed{}, owner, child)
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

	w.reselect(selecting("theirs"))
	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, ours)
	w.Eventually(ringtest.Placed{Shard: "a"}, other, theirs)
	require.Equal(t, ringtest.Placed{Shard: "a"}, w.Placed(child))
	w.Acknowledge(ours)
	w.Eventually(ringtest.Placed{}, ours, child)
	w.AtRest()

	w.reselect(func(r *v1alpha1.ClusterRing) { r.Spec.ObjectSelector = &metav1.LabelSelector{} })
	w.Eventually(ringtest.Placed{Shard: "a"}, ours, child, theirs, other, w.Main("bare", ""))
	w.AtRest()
}

// TestUnselectedObjectsOfLostShards finds them at a start, and when the shard is lost.
func TestUnselectedObjectsOfLostShards(t *testing.T) {
	w := newTestRing(t, selecting("ours"))
	w.Join("a", "b", "gone")
	require.NoError(t, w.Shards["gone"].Release(t.Context()))

	early := w.of("theirs", "early", "gone")
	earlyChild := w.Child(early, "gone")

	stop := w.start()
	w.Eventually(ringtest.Placed{}, early, earlyChild)
	w.AtRest()
	stop()

	late := w.of("theirs", "late", "b")
	lateChild := w.Child(late, "b")

	w.start()
	w.Eventually(ringtest.Placed{Shard: "b", Drain: true}, late)
	require.NoError(t, w.Shards["b"].Release(t.Context()))
	w.Eventually(ringtest.Placed{}, late, lateChild)
	w.AtRest()
}

func TestDeletedRingWithSelectorLeavesNoLabel(t *testing.T) {
	w := newTestRing(t, selecting("ours"))
	w.Join("a")
	w.start()

	ours := w.of("ours", "ours", "")
	child := w.Child(ours, "")
	w.Eventually(ringtest.Placed{Shard: "a"}, ours, child)

	theirs := w.of("ours", "theirs", "")
	w.Eventually(ringtest.Placed{Shard: "a"}, theirs)
	w.relabel(theirs, operatedBy, "theirs")
	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, theirs)

	require.NoError(t, w.Client.Delete(t.Context(), w.Ring))
	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, ours)
	w.Acknowledge(ours)
	w.Placed(theirs)
	w.Acknowledge(theirs)
	w.Eventually(ringtest.Placed{}, ours, child, theirs)
	require.Eventually(t, func() bool {
		return apierrors.IsNotFound(w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))
	}, 20*time.Second, 20*time.Millisecond, "the ring should disappear when its labels are gone")
}

// TestTwoRingsShareAKind: two operators side by side. An object that changes its operator is released by one before the other's shard label is all it has.
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
	w.Eventually(ringtest.Placed{Shard: "a", Drain: true}, ours)
	w.Acknowledge(ours)
	w.Eventually(ringtest.Placed{}, ours)
	other.Eventually(ringtest.Placed{Shard: "z"}, ours)
}

// TestInvalidObjectSelector changes nothing, and says so.
func TestInvalidObjectSelector(t *testing.T) {
	w := newTestRing(t, selecting("ours"))
	w.Join("a")
	w.start()

	ours := w.of("ours", "ours", "")
	w.Eventually(ringtest.Placed{Shard: "a"}, ours)
	w.AtRest()

	w.reselect(func(r *v1alpha1.ClusterRing) {
		r.Spec.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"not a label": "x"}}
	})
	require.Contains(t, w.Assigned(v1alpha1.ReasonAssignmentFailed).Message, "spec.objectSelector")
	require.Equal(t, ringtest.Placed{Shard: "a"}, w.Placed(ours))
}

func TestObjectSelectorsAreValidated(t *testing.T) {
	w := newTestRing(t)

	for what, selector := range map[string]*metav1.LabelSelector{
		"the shard label of a ring": {MatchLabels: map[string]string{w.Ring.LabelKeys().Shard: "a"}},
		"the drain label of a ring": {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: w.Ring.LabelKeys().Drain, Operator: metav1.LabelSelectorOpDoesNotExist}}},
		"an operator of fields":     {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Gt", Values: []string{"1"}}}},
		"In without values":         {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpIn}}},
	} {
		w.Ring.Spec.ObjectSelector = selector
		require.True(t, apierrors.IsInvalid(w.Client.Update(t.Context(), w.Ring)), what)
	}

	many := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for i := range 17 {
		many.MatchLabels[fmt.Sprint("l", i)] = "x"
	}

	w.Ring.Spec.ObjectSelector = many
	require.True(t, apierrors.IsInvalid(w.Client.Update(t.Context(), w.Ring)), "more requirements than the assigner may register")
}
