package membership_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/membership"
)

var begin = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// takenAt returns the Lease of a shard, created and taken so long after the beginning.
func takenAt(name string, created, taken time.Duration) *coordinationv1.Lease {
	l := leaseOf("r", "ns/"+name, name)
	l.CreationTimestamp = metav1.NewTime(begin.Add(created))
	l.Spec.AcquireTime = &metav1.MicroTime{Time: begin.Add(taken)}

	return l
}

func TestActiveShards(t *testing.T) {
	stopping := takenAt("a", 0, 0)
	stopping.Spec.RenewTime = &metav1.MicroTime{Time: begin}
	metav1.SetMetaDataAnnotation(&stopping.ObjectMeta, contract.AnnotationStopping, contract.OfferValue(begin))

	for _, tc := range []struct {
		name            string
		active          int
		leases          []*coordinationv1.Lease
		available       []string
		standby, worked int
	}{
		{name: "all", leases: []*coordinationv1.Lease{takenAt("a", 0, 0), takenAt("b", 1, 1)}, available: []string{"a", "b"}, worked: 2},
		{
			name: "those that have held their Leases for longest", active: 2,
			leases:    []*coordinationv1.Lease{takenAt("a", 0, 3*time.Second), takenAt("b", 0, time.Second), takenAt("c", 0, 2*time.Second)},
			available: []string{"b", "c"}, standby: 1, worked: 3,
		},
		{
			name: "fewer than there may be", active: 3, leases: []*coordinationv1.Lease{takenAt("a", 0, 0)}, available: []string{"a"}, worked: 1,
		},
		{
			name: "a shard whose clock is behind has not taken its Lease before it was created", active: 1,
			leases:    []*coordinationv1.Lease{takenAt("a", 0, time.Second), takenAt("b", time.Minute, -time.Hour)},
			available: []string{"a"}, standby: 1, worked: 2,
		},
		{
			name: "a standby replaces a shard that stops, which works until its objects are drained", active: 1,
			leases:    []*coordinationv1.Lease{stopping, takenAt("b", 0, time.Second), takenAt("c", 0, 2*time.Second)},
			available: []string{"b"}, standby: 1, worked: 3,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := membership.Rules{Active: tc.active}.View("r", tc.leases, nil)
			require.Equal(t, tc.available, v.AvailableShards())
			require.Len(t, v.StandbyShards(), tc.standby)
			require.Len(t, v.WorkingShards(), tc.worked)
			require.Empty(t, v.Problems())
		})
	}
}

// Rings with the same shards do not all choose the same ones.
func TestRingsChooseDifferentActiveShards(t *testing.T) {
	chosen := map[string]bool{}

	for _, ring := range []string{"one", "two", "three", "four", "five", "six"} {
		var leases []*coordinationv1.Lease

		for _, name := range []string{"a", "b", "c"} {
			l := takenAt(name, 0, 0)
			l.Labels[contract.LabelClusterRing] = ring
			leases = append(leases, l)
		}

		chosen[membership.Rules{Active: 1}.View(ring, leases, nil).AvailableShards()[0]] = true
	}

	require.Greater(t, len(chosen), 1)
}

// A shard that joins changes nothing while enough others are available, and a shard that is lost is replaced by exactly one other.
func TestActiveShardsStayActive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching("[a-z]{1,3}"), 2, 12, rapid.ID).Draw(t, "names")
		active := rapid.IntRange(1, len(names)).Draw(t, "active")

		var leases []*coordinationv1.Lease

		for i, name := range names {
			at := time.Duration(rapid.IntRange(0, i).Draw(t, "taken")) * time.Second
			leases = append(leases, takenAt(name, 0, at))
		}

		rules := membership.Rules{Active: active}
		before := rules.View("r", leases, nil).AvailableShards()
		require.Len(t, before, active)

		joined := append(slices.Clone(leases), takenAt("joins", time.Hour, time.Hour))
		require.Equal(t, before, rules.View("r", joined, nil).AvailableShards())

		lost := rapid.SampledFrom(before).Draw(t, "lost")
		after := rules.View("r", slices.DeleteFunc(joined, func(l *coordinationv1.Lease) bool { return l.Name == lost }), nil).AvailableShards()
		require.Len(t, after, active)

		replaced := slices.DeleteFunc(slices.Clone(after), func(name string) bool { return slices.Contains(before, name) })
		require.Len(t, replaced, 1)
		require.NotContains(t, after, lost)
	})
}

// What would be, if other shards were there.
func TestActivate(t *testing.T) {
	leases := []*coordinationv1.Lease{takenAt("a", 0, 3*time.Second), takenAt("b", 0, time.Second), takenAt("c", 0, 2*time.Second)}
	v := membership.Rules{Active: 2}.View("r", leases, nil)

	require.Equal(t, []string{"b", "c"}, v.Activate([]string{"a", "b", "c"}))
	require.Equal(t, []string{"b", "c"}, v.Activate([]string{"new", "b", "c"}), "it would join last")
	require.Equal(t, []string{"a", "b"}, v.Activate([]string{"a", "b"}), "the standby replaces c")
	require.Equal(t, []string{"a", "new"}, v.Activate([]string{"a", "new"}))
	require.Equal(t, []string{"a", "b", "c"}, membership.NewView("r", leases, nil).Activate([]string{"a", "b", "c"}))
}

// An index follows the number of active shards.
func TestIndexFollowsActiveShards(t *testing.T) {
	x, changes := watched()
	x.Upsert(takenAt("a", 0, 0))
	x.Upsert(takenAt("b", 0, time.Second))
	changes()

	x.Rule("r", membership.Rules{Active: 1})
	require.Equal(t, []string{"r"}, changes())
	require.Equal(t, []string{"a"}, x.View("r").AvailableShards())
	require.True(t, x.View("r").Works("b"))

	renewed := takenAt("a", 0, 0)
	renewed.Spec.RenewTime = &metav1.MicroTime{Time: begin.Add(time.Minute)}
	view := x.View("r")
	x.Upsert(renewed)
	require.Same(t, view, x.View("r"), "a renewal changes nothing")

	x.Upsert(takenAt("a", 0, time.Minute)) // it was lost, and came back
	require.Equal(t, []string{"b"}, x.View("r").AvailableShards(), "the objects stay where they are")

	x.Rule("r", membership.Rules{})
	require.Equal(t, []string{"a", "b"}, x.View("r").AvailableShards())
}
