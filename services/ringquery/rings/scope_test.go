package rings_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

func TestCoverageIsOnlyWhatTheNameTells(t *testing.T) {
	byName := func(op metav1.LabelSelectorOperator, values ...string) metav1.LabelSelectorRequirement {
		return metav1.LabelSelectorRequirement{Key: "kubernetes.io/metadata.name", Operator: op, Values: values}
	}
	byTeam := metav1.LabelSelectorRequirement{Key: "team", Operator: metav1.LabelSelectorOpExists}
	selector := func(r ...metav1.LabelSelectorRequirement) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: r}
	}

	for name, c := range map[string]struct {
		selector *metav1.LabelSelector
		want     rings.Coverage
		text     string
	}{
		"default":             {nil, rings.Covered, "kubernetes.io/metadata.name notin (kube-node-lease,kube-public,kube-system,sharding-system)"},
		"everything":          {&metav1.LabelSelector{}, rings.Covered, ""},
		"this one":            {selector(byName(metav1.LabelSelectorOpIn, "ns")), rings.Covered, "kubernetes.io/metadata.name in (ns)"},
		"others":              {selector(byName(metav1.LabelSelectorOpIn, "other")), rings.NotCovered, "kubernetes.io/metadata.name in (other)"},
		"not this one":        {selector(byName(metav1.LabelSelectorOpNotIn, "ns")), rings.NotCovered, "kubernetes.io/metadata.name notin (ns)"},
		"a label":             {selector(byTeam), rings.Unknown, "team"},
		"this one, a label":   {selector(byName(metav1.LabelSelectorOpIn, "ns"), byTeam), rings.Unknown, "kubernetes.io/metadata.name in (ns),team"},
		"a label, not this":   {selector(byTeam, byName(metav1.LabelSelectorOpNotIn, "ns")), rings.NotCovered, "kubernetes.io/metadata.name notin (ns),team"},
		"nonsense in the API": {selector(byName("Sometimes", "ns")), rings.Unknown, `invalid: "Sometimes" is not a valid label selector operator`},
	} {
		t.Run(name, func(t *testing.T) {
			ring := rings.Ring{ClusterRing: &v1alpha1.ClusterRing{Spec: v1alpha1.ClusterRingSpec{NamespaceSelector: c.selector}}}
			require.Equal(t, c.want, ring.Covers("ns", nil))
			require.Equal(t, c.text, ring.Selector())
		})
	}
}
