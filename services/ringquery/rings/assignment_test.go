package rings_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/ringquery/rings"
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
		{false, false, "", "", rings.None, rings.Foreign},
		{true, false, "", "", rings.Foreign, rings.Foreign},
		{true, false, "a", "", rings.Foreign, rings.Foreign},
		{true, false, "dead", "", rings.Foreign, rings.Foreign},
		{false, true, "", "a", rings.Unassigned, rings.Unassigned},
		{false, true, "", "", rings.Unassigned, rings.Unassigned},
		{true, true, "", "a", rings.Unassigned, rings.Unassigned},
		{true, true, "dead", "a", rings.DeadShard, rings.DeadShard},
		{true, true, "dead", "dead", rings.DeadShard, rings.DeadShard},
		{true, true, "dead", "", rings.DeadShard, rings.DeadShard},
		{true, true, "a", "b", rings.Misplaced, rings.Draining},
		{true, true, "a", "a", rings.Assigned, rings.Draining},
	} {
		for _, draining := range []bool{false, true} {
			want := c.plain
			if draining {
				want = c.draining
			}

			for _, controlled := range []bool{false, true} {
				o := plan.Object{
					Labelled: c.labelled, Belongs: c.belongs, Shard: c.shard, Desired: c.desired, Draining: draining, Controlled: controlled,
				}
				require.Equal(t, want, rings.StateOf(shards, o), "%+v", o)
			}
		}
	}

	got := rings.StateOf(live{}, plan.Object{Labelled: true, Belongs: true, Shard: "a"})
	require.Equal(t, rings.DeadShard, got, "no shard is available")
}

// TestEveryStateOfAnAssignmentHasAName verifies that the short names cover all values of the API.
func TestEveryStateOfAnAssignmentHasAName(t *testing.T) {
	known := map[pb.AssignmentState]bool{
		rings.None: true, rings.Assigned: true, rings.Misplaced: true, rings.Draining: true,
		rings.DeadShard: true, rings.Unassigned: true, rings.Foreign: true,
	}
	require.Len(t, known, len(pb.AssignmentState_name))
}

func TestLabels(t *testing.T) {
	shard, drain := contract.ShardLabel("example"), contract.DrainLabel("example")

	for _, c := range []struct {
		labels map[string]string
		want   plan.Object
	}{
		{nil, plan.Object{}},
		{map[string]string{shard: "a"}, plan.Object{Shard: "a", Labelled: true}},
		{map[string]string{shard: ""}, plan.Object{Labelled: true}},
		{map[string]string{shard: "a", drain: ""}, plan.Object{Shard: "a", Labelled: true, Draining: true}},
		{map[string]string{drain: "true"}, plan.Object{Draining: true}},
		{map[string]string{contract.ShardLabel("other"): "a", contract.DrainLabel("other"): "true"}, plan.Object{}},
	} {
		require.Equal(t, c.want, rings.Labels(contract.LabelKeysOf("example", ""), c.labels))
	}
}

func TestDrainTime(t *testing.T) {
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
		"not draining":         {nil, []metav1.ManagedFieldsEntry{entry(at(1), ours)}, nil},
		"no managed fields":    {labels, nil, nil},
		"another's label":      {labels, []metav1.ManagedFieldsEntry{entry(at(1), others)}, nil},
		"one manager":          {labels, []metav1.ManagedFieldsEntry{entry(at(1), others), entry(at(2), ours), entry(at(3), `{}`)}, at(2)},
		"the first of several": {labels, []metav1.ManagedFieldsEntry{entry(at(4), ours), entry(at(2), ours), entry(at(3), ours)}, at(2)},
		"no time":              {labels, []metav1.ManagedFieldsEntry{entry(nil, ours)}, nil},
		"nonsense":             {labels, []metav1.ManagedFieldsEntry{entry(at(1), `[`), {Time: at(1)}}, nil},
	} {
		got, ok := rings.DrainTime(contract.LabelKeysOf("example", ""), &metav1.ObjectMeta{Labels: c.labels, ManagedFields: c.fields})
		require.Equal(t, c.want != nil, ok, name)

		if c.want != nil {
			require.True(t, c.want.Time.Equal(got), name)
		}
	}
}
