package v1alpha1

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

func TestLabelsOfTheGuideAreThoseOfTheContract(t *testing.T) {
	for _, ring := range []string{"example", "my-clusterring", strings.Repeat("a", 41) + "-" + strings.Repeat("b", 21)} {
		for _, kind := range []string{KindClusterRing, "ClusterRing"} {
			require.Equal(t, contract.ShardLabel(ring), LabelShard(kind, "", ring))
			require.Equal(t, contract.DrainLabel(ring), LabelDrain(kind, "", ring))
		}
	}

	require.Equal(t, "shard.alpha.sharding.timebertt.dev/clusterring-50d858e0-example",
		LabelShard(KindClusterRing, "", "example"))
	require.NotEqual(t, LabelShard("ring", "a", "b"), LabelShard("ring", "", "b"))
	require.True(t, strings.HasSuffix(LabelShard("ring", "a", "b"), "-a_b"))
}

func TestEffectiveNamespaceSelector(t *testing.T) {
	def := ClusterRingSpec{}.EffectiveNamespaceSelector()
	require.Equal(t, []string{"kube-node-lease", "kube-public", "kube-system", "sharding-system"},
		def.MatchExpressions[0].Values)
	require.Equal(t, "kubernetes.io/metadata.name", def.MatchExpressions[0].Key)

	spec := ClusterRingSpec{NamespaceSelector: def}
	own := spec.EffectiveNamespaceSelector()
	own.MatchExpressions[0].Key = "changed"
	require.Equal(t, "kubernetes.io/metadata.name", spec.NamespaceSelector.MatchExpressions[0].Key,
		"the spec's own selector is copied")
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
		"none":              {},
		"an empty one":      {spec: ClusterRingSpec{ObjectSelector: &metav1.LabelSelector{}}},
		"in an order":       {spec: ClusterRingSpec{ObjectSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{in("b", "y", "x"), in("b", "x"), in("a", "x")}}}, want: []string{"a in (x)", "b in (x)", "b in (x,y)"}},
		"labels and others": {spec: ClusterRingSpec{ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"b": "x"}, MatchExpressions: []metav1.LabelSelectorRequirement{in("a", "x")}}}, want: []string{"a in (x)", "b=x"}},
		"no label":          {spec: ClusterRingSpec{ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a b": "x"}}}, err: "spec.objectSelector"},
		"the shard label":   {spec: ClusterRingSpec{ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"shard.alpha.sharding.timebertt.dev/x": "x"}}}, err: "is a label of a ring"},
		"the own shard label": {spec: ClusterRingSpec{ShardLabel: "a.b/c",
			ObjectSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{in("a.b/c",
				"x")}}}, err: "is a label of a ring"},
		"the own drain label": {spec: ClusterRingSpec{ShardLabel: "a.b/c",
			ObjectSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{in("a.b/c-drain",
				"x")}}}, err: "is a label of a ring"},
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

func TestLabelKeys(t *testing.T) {
	ring := &ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: "example"}}
	require.Equal(t, contract.LabelKeys{
		Shard:    "shard.alpha.sharding.timebertt.dev/clusterring-50d858e0-example",
		Drain:    "drain.alpha.sharding.timebertt.dev/clusterring-50d858e0-example",
		Handover: "handover.alpha.sharding.timebertt.dev/clusterring-50d858e0-example",
		Held:     "held.alpha.sharding.timebertt.dev/clusterring-50d858e0-example",
	}, ring.LabelKeys())

	ring.Spec.ShardLabel = "cloudapi.team-orca.dev/shard"
	require.Equal(t, contract.LabelKeys{
		Shard:    "cloudapi.team-orca.dev/shard",
		Drain:    "cloudapi.team-orca.dev/shard-drain",
		Handover: "cloudapi.team-orca.dev/shard-handover",
		Held:     "cloudapi.team-orca.dev/shard-held",
	}, ring.LabelKeys())
	require.Equal(t, ring.LabelKeys(), contract.LabelKeysOf("other", ring.Spec.ShardLabel), "the name has no part in it")
}
