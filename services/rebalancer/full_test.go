package rebalancer

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

// An owner whose annotations leave no room for that of the hand-over moves without it, after what follows it.
func TestOwnerWithFullAnnotations(t *testing.T) {
	for what, leave := range map[string]func(*testRing, *corev1.ConfigMap){
		"its shard releases it": func(w *testRing, owner *corev1.ConfigMap) {
			w.Eventually(ringtest.Placed{Shard: "b", Drain: true}, owner)
			w.Acknowledge(owner)
		},
		"its shard is dead": func(w *testRing, _ *corev1.ConfigMap) {
			require.NoError(w, w.Shards["b"].Release(w.Context()))
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newTestRing(t)
			w.Join("a", "b")

			annotations := map[string]string{"full": strings.Repeat("x", validation.TotalAnnotationSizeLimitB-60)}
			owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				Namespace: w.Namespace, Name: w.NamesOf("a", 1)[0], Labels: w.Labels("b"), Annotations: annotations,
			}}
			require.NoError(t, w.Client.Create(t.Context(), owner))
			child := w.Child(owner, "b")

			w.start()
			leave(w, owner)
			w.Eventually(ringtest.Placed{Shard: "a"}, child, owner)
			require.Equal(t, annotations, owner.Annotations)
			w.AtRest()
		})
	}
}
