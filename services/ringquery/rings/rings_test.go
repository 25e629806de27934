package rings

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// live are the available shards.
type live map[string]bool

func (l live) Works(shard string) bool { return l[shard] }

// TestStates covers every combination of facts. The expected state is the last one in the list that applies.
func TestStates(t *testing.T) {
	shards := live{"a": true, "b": true}

	for _, c := range []struct {
		labelled, belongs bool
		shard, desired    string
		plain, draining   pb.AssignmentState // without and with the drain label
	}{
		{false, false, "", "", None, Foreign},
		{true, false, "", "", Foreign, Foreign},
		{true, false, "a", "", Foreign, Foreign},
		{true, false, "dead", "", Foreign, Foreign},
		{false, true, "", "a", Unassigned, Unassigned},
		{false, true, "", "", Unassigned, Unassigned},
		{true, true, "", "a", Unassigned, Unassigned},
		{true, true, "dead", "a", DeadShard, DeadShard},
		{true, true, "dead", "dead", DeadShard, DeadShard},
		{true, true, "dead", "", DeadShard, DeadShard},
		{true, true, "a", "b", Misplaced, Draining},
		{true, true, "a", "a", Assigned, Draining},
	} {
		for _, draining := range []bool{false, true} {
			want := c.plain
			if draining {
				want = c.draining
			}

			for _, controlled := range []bool{false, true} {
				o := plan.Object{
					Labelled: c.labelled, Belongs: c.belongs, Shard: c.shard, Desired: c.desired, Draining: draining,
					Controlled: controlled,
				}
				require.Equal(t, want, StateOf(shards, o), "%+v", o)
			}
		}
	}

	got := StateOf(live{}, plan.Object{Labelled: true, Belongs: true, Shard: "a"})
	require.Equal(t, DeadShard, got, "no shard is available")
}

func TestWriters(t *testing.T) {
	drain := contract.DrainLabel("example")
	at := func(minute int) *metav1.Time { return new(metav1.Date(2026, 1, 2, 3, minute, 0, 0, time.UTC)) }
	entry := func(when *metav1.Time, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Time: when, FieldsV1: metav1.NewFieldsV1(fields)}
	}
	ours := `{"f:metadata":{"f:labels":{".":{},"f:` + drain + `":{}}}}`
	others := `{"f:metadata":{"f:labels":{"f:` + contract.DrainLabel("other") + `":{}}}}`
	labels := map[string]string{drain: "true"}

	for name, c := range map[string]struct {
		labels map[string]string
		fields []metav1.ManagedFieldsEntry
		want   *metav1.Time
	}{
		"not draining":      {nil, []metav1.ManagedFieldsEntry{entry(at(1), ours)}, nil},
		"no managed fields": {labels, nil, nil},
		"another's label":   {labels, []metav1.ManagedFieldsEntry{entry(at(1), others)}, nil},
		"one manager": {labels, []metav1.ManagedFieldsEntry{entry(at(1), others), entry(at(2), ours),
			entry(at(3), `{}`)}, at(2)},
		"the first of several": {labels, []metav1.ManagedFieldsEntry{entry(at(4), ours), entry(at(2), ours),
			entry(at(3), ours)}, at(2)},
		"no time":  {labels, []metav1.ManagedFieldsEntry{entry(nil, ours)}, nil},
		"nonsense": {labels, []metav1.ManagedFieldsEntry{entry(at(1), `[`), {Time: at(1)}}, nil},
	} {
		got := Writers(drain, &metav1.ObjectMeta{Labels: c.labels, ManagedFields: c.fields})
		require.Equal(t, c.want != nil, len(got) > 0, name)

		if c.want != nil {
			require.Equal(t, c.want, got[0].Time, name)
		}
	}
}

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
		want     Coverage
		text     string
	}{
		"default": {nil, Covered, "kubernetes.io/metadata.name notin " +
			"(kube-node-lease,kube-public,kube-system,sharding-system)"},
		"everything": {&metav1.LabelSelector{}, Covered, ""},
		"this one": {selector(byName(metav1.LabelSelectorOpIn, "ns")), Covered,
			"kubernetes.io/metadata.name in (ns)"},
		"not this one": {selector(byName(metav1.LabelSelectorOpNotIn, "ns")), NotCovered,
			"kubernetes.io/metadata.name notin (ns)"},
		"a label": {selector(byTeam), Unknown, "team"},
		"this one, a label": {selector(byName(metav1.LabelSelectorOpIn, "ns"), byTeam), Unknown,
			"kubernetes.io/metadata.name in (ns),team"},
		"a label, not this": {selector(byTeam, byName(metav1.LabelSelectorOpNotIn, "ns")), NotCovered,
			"kubernetes.io/metadata.name notin (ns),team"},
		"nonsense in the API": {selector(byName("Sometimes", "ns")), Unknown,
			`invalid: "Sometimes" is not a valid label selector operator`},
	} {
		t.Run(name, func(t *testing.T) {
			ring := Ring{ClusterRing: &v1alpha1.ClusterRing{Spec: v1alpha1.ClusterRingSpec{NamespaceSelector: c.selector}}}
			require.Equal(t, c.want, ring.Covers("ns", nil))
			require.Equal(t, c.text, ring.Selector())
		})
	}
}

// empty is the discovery of an API server that serves only what there must be.
type empty struct{}

func (empty) GroupsAndResources(context.Context) ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	return []*metav1.APIGroup{{}, {Name: v1alpha1.GroupVersion.Group}}, nil, nil
}

// What the API server does not serve differs from what is not known.
func TestResourceThatIsNotServedOrNotKnown(t *testing.T) {
	known := resources.NewResolver(empty{}.GroupsAndResources, clock.RealClock{}, logr.Discard())
	r := &Rings{Known: known}

	_, err := r.Resource(Reference{Kind: "Shop"})
	require.ErrorIs(t, err, ErrUnavailable)

	go func() { _ = known.Start(t.Context()) }()

	require.NoError(t, known.Await(t.Context()))

	_, err = r.Resource(Reference{Kind: "Shop"})
	require.ErrorIs(t, err, ErrNotServed)
}
