package api

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

func TestChangesOfShards(t *testing.T) {
	before := []string{"a", "b", "c"}

	for name, c := range map[string]struct {
		change *pb.SimulateRequest
		want   []string
		fields []string
	}{
		"nothing":    {&pb.SimulateRequest{}, []string{"a", "b", "c"}, nil},
		"remove":     {&pb.SimulateRequest{Remove: []string{"b"}}, []string{"a", "c"}, nil},
		"remove all": {&pb.SimulateRequest{Remove: []string{"a", "b", "c"}}, nil, nil},
		"rename":     {&pb.SimulateRequest{Rename: []*pb.Rename{{From: "a", To: "z"}}}, []string{"b", "c", "z"}, nil},
		"all at once": {
			&pb.SimulateRequest{Add: []string{"d"}, Remove: []string{"c"},
				Rename: []*pb.Rename{{From: "a", To: "x"}, {From: "b", To: "y"}}}, []string{"d", "x", "y"}, nil,
		},

		"added twice":        {&pb.SimulateRequest{Add: []string{"d", "d"}}, nil, []string{"add[1]"}},
		"add what is there":  {&pb.SimulateRequest{Add: []string{"a"}}, nil, []string{"add[0]"}},
		"remove what is not": {&pb.SimulateRequest{Remove: []string{"d"}}, nil, []string{"remove[0]"}},
		"removed and added":  {&pb.SimulateRequest{Add: []string{"a"}, Remove: []string{"a"}}, nil, []string{"add[0]"}},
		"rename to itself": {&pb.SimulateRequest{Rename: []*pb.Rename{{From: "a", To: "a"}}}, nil,
			[]string{"rename[0].to"}},
		"renamed to the added": {&pb.SimulateRequest{Add: []string{"d"}, Rename: []*pb.Rename{{From: "a", To: "d"}}}, nil,
			[]string{"add[0]"}},
		"no names": {&pb.SimulateRequest{Add: []string{"a/b"}, Remove: []string{""}, Rename: []*pb.Rename{{}}}, nil,
			[]string{"remove[0]", "rename[0].from", "rename[0].to", "add[0]"}},
		"every mistake": {&pb.SimulateRequest{Add: []string{"a"}, Remove: []string{"x"},
			Rename: []*pb.Rename{{From: "y", To: "b"}}}, nil, []string{"remove[0]", "rename[0].from", "rename[0].to", "add[0]"}},
	} {
		t.Run(name, func(t *testing.T) {
			names, err := apply(before, c.change)
			if c.fields == nil {
				require.NoError(t, err)
				require.ElementsMatch(t, c.want, names)

				return
			}

			require.Equal(t, c.fields, fields(t, err))
		})
	}
}

func TestWhatMoves(t *testing.T) {
	for name, c := range map[string]struct {
		before, after []string
		least, most   float64 // of what moves
		shards        int
	}{
		"none at all":     {nil, nil, 0, 0, 0},
		"the first":       {nil, []string{"a", "b", "c"}, 1, 1, 3},
		"the last leaves": {[]string{"a", "b", "c"}, nil, 1, 1, 3},
		"one joins":       {[]string{"a", "b", "c"}, []string{"a", "b", "c", "d"}, 0.25, 0.26, 4},
		"one leaves":      {[]string{"a", "b", "c", "d"}, []string{"a", "b", "d"}, 0.25, 0.26, 4},
		"one is renamed":  {[]string{"a", "b", "c", "d"}, []string{"a", "b", "c", "x"}, 0.25, 0.44, 5},
		"all are renamed": {[]string{"a", "b"}, []string{"x", "y"}, 1, 1, 4},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := hashring.New(c.before), hashring.New(c.after)
			sim := compare(before, after)
			require.InDelta(t, c.least, sim.GetLeast(), 1e-9)
			require.GreaterOrEqual(t, sim.GetMoved(), c.least*0.98)
			require.LessOrEqual(t, sim.GetMoved(), c.most)
			require.Equal(t, before.Fingerprint(), sim.GetFingerprintBefore())
			require.Equal(t, after.Fingerprint(), sim.GetFingerprintAfter())
			require.Len(t, sim.GetShards(), c.shards)

			for _, s := range sim.GetShards() {
				require.EqualValues(t, before.PartitionsOf(s.GetName()), s.GetPartitionsBefore())
				require.EqualValues(t, after.PartitionsOf(s.GetName()), s.GetPartitionsAfter())
			}
		})
	}
}

// Keys are counted one by one up to a limit. Objects are counted beyond it.
func TestKeysAreLimited(t *testing.T) {
	table := hashring.New([]string{"a", "b"})
	l := newLoads(func(string) *hashring.Table { return table })
	tenant := func(i int) rings.Key {
		return rings.Key{Key: key.OfLabel("tenant", fmt.Sprint(i)), Rule: key.Rule{Label: "tenant"}}
	}

	sums := func() (objects, keys int64) {
		for _, load := range l.of {
			objects, keys = objects+load.GetObjects(), keys+load.GetKeys()
		}

		return objects, keys
	}

	for i := range maxKeys {
		l.add(tenant(i))
	}

	l.add(tenant(7))
	require.False(t, l.limited)

	l.add(tenant(maxKeys))
	l.add(rings.Key{Key: key.Key{Kind: "ConfigMap", Name: "by-name"}})
	require.True(t, l.limited)
	require.Len(t, l.keys, maxKeys)

	objects, keys := sums()
	require.EqualValues(t, maxKeys+3, objects)
	require.EqualValues(t, maxKeys+1, keys)

	owner, _ := table.Owner(tenant(7).Hash())
	require.EqualValues(t, 2, l.of[owner].GetLargestKeyObjects())
	require.Equal(t, "7", l.of[owner].GetLargestKey().GetName())
}

// TestPageIsSorted verifies the order by namespace, then name. The API server sorts by the joined names: "a-b/x" comes
// before "a/x".
func TestPageIsSorted(t *testing.T) {
	r := rings.Ring{
		ClusterRing: &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: "ring"}},
		View:        membership.NewView("ring", nil, nil),
		Resources:   &resources.Set{},
	}
	m := member{
		Resource: resources.Resource{Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Namespaced: true},
		role:     resources.Main,
		spaces:   &namespaces{ring: r, known: map[string]bool{"a": true, "a-b": true}, listed: true},
	}

	all, err := m.assignmentsOf(t.Context(), []metav1.PartialObjectMetadata{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "a-b", Name: "x"}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "y"}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "x"}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "not-covered", Name: "x"}},
	})
	require.NoError(t, err)

	var names []string

	for _, a := range all {
		require.Equal(t, rings.Unassigned, a.GetState())
		names = append(names, a.GetNamespace()+"/"+a.GetName())
	}
	require.Equal(t, []string{"a/x", "a/y", "a-b/x"}, names)
}

// A cluster-scoped object is covered, also when all namespaces are known: a ring may have main resources of both kinds.
func TestClusterScopedObjectsAreAlwaysCovered(t *testing.T) {
	covered, err := (&namespaces{known: map[string]bool{"selected": true}, listed: true}).covers(t.Context(), "")
	require.NoError(t, err)
	require.True(t, covered)
}
