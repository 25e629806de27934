package rebalancer

import (
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

// While a ring is paused, no object moves to balance it. Objects of a lost shard, and new objects, get a shard, and drains that are under way are withdrawn.
func TestPausedRing(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")
	w.start()

	var all, children []client.Object

	for i := range 20 {
		cm := w.Main("cm-"+strconv.Itoa(i), "")
		all, children = append(all, cm), append(children, w.Child(cm, ""))
	}

	at := map[string]string{}

	for _, cm := range all {
		at[cm.GetName()] = w.Owner(cm.GetName())
		w.Eventually(ringtest.Placed{Shard: at[cm.GetName()]}, cm)
	}

	w.AtRest()
	w.Join("c")

	moves := slices.IndexFunc(all, func(cm client.Object) bool { return w.Owner(cm.GetName()) == "c" })
	w.Eventually(ringtest.Placed{Shard: at[all[moves].GetName()], Drain: true}, all[moves])
	w.edit(func(spec *v1alpha1.ClusterRingSpec) { spec.Paused = true })

	for _, cm := range all {
		w.Eventually(ringtest.Placed{Shard: at[cm.GetName()]}, cm)
	}

	w.AtRest()

	late := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: all[moves].GetName(), UID: all[moves].GetUID()}}
	require.NoError(t, w.Client.Delete(t.Context(), children[moves]))

	for i, child := range children {
		if i == moves {
			child = w.Child(late, "") // its owner is not where its key says
		}

		w.Eventually(ringtest.Placed{Shard: at[child.GetName()]}, child)
	}

	w.AtRest()
	require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))
	require.True(t, meta.IsStatusConditionTrue(w.Ring.Status.Conditions, v1alpha1.ConditionPaused))

	require.NoError(t, w.Shards["a"].Release(t.Context()))

	for _, cm := range all {
		if at[cm.GetName()] == "a" {
			at[cm.GetName()] = w.Owner(cm.GetName())
		}

		w.Eventually(ringtest.Placed{Shard: at[cm.GetName()]}, cm)
	}

	w.AtRest()
	w.edit(func(spec *v1alpha1.ClusterRingSpec) { spec.Paused = false })

	for _, cm := range all {
		to := ringtest.Placed{Shard: w.Owner(cm.GetName())}
		if to.Shard != at[cm.GetName()] {
			w.Eventually(ringtest.Placed{Shard: at[cm.GetName()], Drain: true}, cm)
			w.Acknowledge(cm)
		}

		w.Eventually(to, cm)
	}

	w.AtRest()
	require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))
	require.Nil(t, meta.FindStatusCondition(w.Ring.Status.Conditions, v1alpha1.ConditionPaused))
}
