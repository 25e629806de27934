package kit_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// TestDefaultNamespaceSelector: what a service knows of a ring contains the default of its flag, unless the ring has a selector.
func TestDefaultNamespaceSelector(t *testing.T) {
	p := localplane.Shared(t)
	own := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "blue"}}

	for name, selector := range map[string]*metav1.LabelSelector{"without-selector": nil, "with-selector": own} {
		ring := &v1alpha1.ClusterRing{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Resource: "configmaps"}}, NamespaceSelector: selector},
		}
		require.NoError(t, p.Client.Create(t.Context(), ring))
		t.Cleanup(func() { require.NoError(t, p.Client.Delete(context.WithoutCancel(t.Context()), ring)) })
	}

	known := func(args ...string) map[string]*metav1.LabelSelector {
		cached := make(chan client.Reader, 1)
		i := start(t, kit.Service{Name: service, Setup: func(ctx context.Context, rt *kit.Runtime) error {
			cached <- rt.Manager.GetCache()

			_, err := rt.Manager.GetCache().GetInformer(ctx, &v1alpha1.ClusterRing{})

			return err
		}}, append(args, kubeconfig(t))...)
		i.waitReady(t)

		var rings v1alpha1.ClusterRingList
		require.NoError(t, receive(t, cached, "setup").List(t.Context(), &rings))
		require.NoError(t, i.stop(t))

		selectors := map[string]*metav1.LabelSelector{}

		for _, ring := range rings.Items {
			require.Empty(t, ring.ManagedFields)
			selectors[ring.Name] = ring.Spec.NamespaceSelector
		}

		return selectors
	}

	require.Subset(t, known(), map[string]*metav1.LabelSelector{"without-selector": nil, "with-selector": own})
	require.Subset(t, known("--default-namespace-selector=sharding=enabled,kubernetes.io/metadata.name notin (a,b)"), map[string]*metav1.LabelSelector{
		"with-selector": own,
		"without-selector": {
			MatchLabels: map[string]string{"sharding": "enabled"},
			MatchExpressions: []metav1.LabelSelectorRequirement{{
				Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"a", "b"},
			}},
		},
	})
}
