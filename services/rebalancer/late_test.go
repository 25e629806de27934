package rebalancer

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

// acknowledge releases what is drained, except one object, until no other object is left at the shard.
func (w *testRing) acknowledge(all client.ObjectList, shard, except string) {
	w.Helper()

	labels := w.Ring.LabelKeys()

	require.Eventually(w, func() bool {
		require.NoError(w, w.Client.List(w.Context(), all, client.InNamespace(w.Namespace), client.MatchingLabels{labels.Shard: shard}))

		left := 0

		for _, o := range objectsOf(all) {
			if o.GetName() == except {
				continue
			}

			left++

			if _, drained := o.GetLabels()[labels.Drain]; drained {
				w.Acknowledge(o)
			}
		}

		return left == 0
	}, 40*time.Second, 10*time.Millisecond, "the shard should be asked for all objects")
}

func objectsOf(list client.ObjectList) (all []client.Object) {
	switch list := list.(type) {
	case *corev1.ConfigMapList:
		for i := range list.Items {
			all = append(all, &list.Items[i])
		}
	case *corev1.SecretList:
		for i := range list.Items {
			all = append(all, &list.Items[i])
		}
	}

	return all
}

// A drain that is never acknowledged costs its own permit: all other objects of the shard move.
func TestLateDrainHoldsUpNoOther(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")

	for _, name := range w.NamesOf("a", 60) {
		w.Main(name, "b")
	}

	w.start("--drain-timeout=1s", "--max-drains-per-shard=1")

	message := w.Assigned(v1alpha1.ReasonDrainsLate).Message
	_, name, _ := strings.Cut(message, "such as configmaps "+w.Namespace+"/")
	name, _, _ = strings.Cut(name, " at shard b")
	stuck := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name}}
	require.Equal(t, ringtest.Placed{Shard: "b", Drain: true}, w.Placed(stuck), message)
	w.acknowledge(&corev1.ConfigMapList{}, "b", stuck.Name)
	require.Equal(t, ringtest.Placed{Shard: "b", Drain: true}, w.Placed(stuck))
	w.Acknowledge(stuck)
	w.AtRest()
}

// A shard that runs no controller for one resource releases the objects of all others, and the status names the resource.
func TestShardWithoutAController(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = []v1alpha1.RingResource{{Resource: "configmaps"}, {Resource: "secrets"}}
	})
	w.Join("a", "b")

	for _, name := range w.NamesOf("a", 20) {
		w.Main(name, "b")
	}

	view := w.View()
	secrets := 0

	for i := 0; secrets < 20; i++ {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: fmt.Sprint("s-", i), Labels: w.Labels("b")}}
		if shard, _ := view.Owner(key.Key{Kind: "Secret", Namespace: w.Namespace, Name: s.Name}); shard == "a" {
			require.NoError(t, w.Client.Create(t.Context(), s))

			secrets++
		}
	}

	w.start("--drain-timeout=1s", "--max-drains-per-shard=3")
	w.acknowledge(&corev1.SecretList{}, "b", "")

	message := ""

	require.Eventually(t, func() bool {
		message = w.Assigned(v1alpha1.ReasonDrainsLate).Message

		return strings.Contains(message, "shard b has acknowledged no drain of configmaps since ")
	}, 20*time.Second, 20*time.Millisecond, &message)

	_, since, _ := strings.Cut(message, " since ")
	since, _, _ = strings.Cut(since, " ")
	at, err := time.Parse(time.RFC3339, since)
	require.NoError(t, err, message)

	created := w.Ring.CreationTimestamp.Time
	require.WithinRange(t, at, created, created.Add(time.Minute), message)

	w.acknowledge(&corev1.ConfigMapList{}, "b", "")
	w.AtRest()
}
