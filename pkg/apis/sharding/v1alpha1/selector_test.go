package v1alpha1

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

func TestObjectRequirements(t *testing.T) {
	in := func(key string, values ...string) metav1.LabelSelectorRequirement {
		return metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: values}
	}

	for name, tc := range map[string]struct {
		spec ClusterRingSpec
		want []string
		err  string
	}{
		"none":                {},
		"an empty one":        {spec: ClusterRingSpec{ObjectSelector: &metav1.LabelSelector{}}},
		"in an order":         {spec: ClusterRingSpec{ObjectSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{in("b", "y", "x"), in("b", "x"), in("a", "x")}}}, want: []string{"a in (x)", "b in (x)", "b in (x,y)"}},
		"labels and others":   {spec: ClusterRingSpec{ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"b": "x"}, MatchExpressions: []metav1.LabelSelectorRequirement{in("a", "x")}}}, want: []string{"a in (x)", "b=x"}},
		"no label":            {spec: ClusterRingSpec{ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a b": "x"}}}, err: "spec.objectSelector"},
		"the shard label":     {spec: ClusterRingSpec{ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"shard.alpha.sharding.timebertt.dev/x": "x"}}}, err: "is a label of a ring"},
		"the own shard label": {spec: ClusterRingSpec{ShardLabel: "a.b/c", ObjectSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{in("a.b/c", "x")}}}, err: "is a label of a ring"},
		"the own drain label": {spec: ClusterRingSpec{ShardLabel: "a.b/c", ObjectSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{in("a.b/c-drain", "x")}}}, err: "is a label of a ring"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tc.spec.ObjectRequirements()
			if tc.err != "" {
				require.ErrorContains(t, err, tc.err)
				return
			}

			require.NoError(t, err)

			var texts []string
			for _, r := range got {
				texts = append(texts, r.String())
			}

			require.Equal(t, tc.want, texts)
		})
	}
}
