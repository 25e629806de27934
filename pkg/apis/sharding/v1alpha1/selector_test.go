package v1alpha1

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEffectiveNamespaceSelector(t *testing.T) {
	def := ClusterRingSpec{}.EffectiveNamespaceSelector()
	require.Equal(t, []string{"kube-node-lease", "kube-public", "kube-system", "sharding-system"}, def.MatchExpressions[0].Values)
	require.Equal(t, "kubernetes.io/metadata.name", def.MatchExpressions[0].Key)

	spec := ClusterRingSpec{NamespaceSelector: def}
	own := spec.EffectiveNamespaceSelector()
	own.MatchExpressions[0].Key = "changed"
	require.Equal(t, "kubernetes.io/metadata.name", spec.NamespaceSelector.MatchExpressions[0].Key, "the spec's own selector is copied")
}
