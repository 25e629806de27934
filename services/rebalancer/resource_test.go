package rebalancer

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// alone returns a ring of ConfigMaps, LimitRanges, which the rebalancer of the tests may not write, and other resources.
func alone(t *testing.T, others ...v1alpha1.RingResource) *testRing {
	t.Helper()

	return newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append([]v1alpha1.RingResource{{Resource: "configmaps"}, {Resource: "limitranges"}}, others...)
	})
}

func (w *testRing) limits(shard string) {
	w.Helper()

	limits := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "kept", Labels: w.Labels(shard)}}
	require.NoError(w, w.Client.Create(w.Context(), limits))
}

// recorded returns what the status says about a main resource; nil if it says nothing.
func (w *testRing) recorded(resource string) *v1alpha1.AssignedResource {
	w.Helper()
	require.NoError(w, w.Client.Get(w.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))

	if a := w.Ring.Status.Assignment; a != nil {
		for i := range a.Resources {
			if a.Resources[i].Resource == resource {
				return &a.Resources[i]
			}
		}
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
			w := alone(t, tc.others...)
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

// A deleted ring waits only for the resources that keep it, and names these, with what helps.
func TestDeletedRingNamesItsResources(t *testing.T) {
	w := alone(t)
	w.Join("a")
	w.limits("a")
	w.start()
	w.AtRest()
	require.NoError(t, w.Client.Delete(t.Context(), w.Ring))

	require.Eventually(t, func() bool {
		return w.recorded("configmaps") == nil && w.recorded("limitranges") != nil
	}, noticed, 20*time.Millisecond, "no ConfigMap has a label: %+v", w.Ring.Status.Assignment)

	var c metav1.Condition

	require.Eventually(t, func() bool {
		c = w.Assigned(v1alpha1.ReasonDeleting)

		return strings.Contains(c.Message, "(1 of limitranges, since ") &&
			strings.Contains(c.Message, "grant get, list, watch and patch")
	}, noticed, 20*time.Millisecond, "the ring reports %+v", &c)
}
