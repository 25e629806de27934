package api

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
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
		"add":        {&pb.SimulateRequest{Add: []string{"e", "d"}}, []string{"a", "b", "c", "d", "e"}, nil},
		"remove":     {&pb.SimulateRequest{Remove: []string{"b"}}, []string{"a", "c"}, nil},
		"remove all": {&pb.SimulateRequest{Remove: []string{"a", "b", "c"}}, nil, nil},
		"rename":     {&pb.SimulateRequest{Rename: []*pb.Rename{{From: "a", To: "z"}}}, []string{"b", "c", "z"}, nil},
		"all at once": {
			&pb.SimulateRequest{Add: []string{"d"}, Remove: []string{"c"}, Rename: []*pb.Rename{{From: "a", To: "x"}, {From: "b", To: "y"}}}, []string{"d", "x", "y"}, nil,
		},

		"added twice":          {&pb.SimulateRequest{Add: []string{"d", "d"}}, nil, []string{"add[1]"}},
		"add what is there":    {&pb.SimulateRequest{Add: []string{"a"}}, nil, []string{"add[0]"}},
		"remove what is not":   {&pb.SimulateRequest{Remove: []string{"d"}}, nil, []string{"remove[0]"}},
		"removed twice":        {&pb.SimulateRequest{Remove: []string{"a", "a"}}, nil, []string{"remove[1]"}},
		"removed and added":    {&pb.SimulateRequest{Add: []string{"a"}, Remove: []string{"a"}}, nil, []string{"add[0]"}},
		"rename what is not":   {&pb.SimulateRequest{Rename: []*pb.Rename{{From: "d", To: "e"}}}, nil, []string{"rename[0].from"}},
		"rename to itself":     {&pb.SimulateRequest{Rename: []*pb.Rename{{From: "a", To: "a"}}}, nil, []string{"rename[0].to"}},
		"rename to what is":    {&pb.SimulateRequest{Rename: []*pb.Rename{{From: "a", To: "b"}}}, nil, []string{"rename[0].to"}},
		"renamed and removed":  {&pb.SimulateRequest{Remove: []string{"a"}, Rename: []*pb.Rename{{From: "a", To: "d"}}}, nil, []string{"rename[0].from"}},
		"renamed to the added": {&pb.SimulateRequest{Add: []string{"d"}, Rename: []*pb.Rename{{From: "a", To: "d"}}}, nil, []string{"add[0]"}},
		"every mistake":        {&pb.SimulateRequest{Add: []string{"a"}, Remove: []string{"x"}, Rename: []*pb.Rename{{From: "y", To: "b"}}}, nil, []string{"remove[0]", "rename[0].from", "rename[0].to", "add[0]"}},
	} {
		t.Run(name, func(t *testing.T) {
			names, err := apply(before, c.change)
			if c.fields == nil {
				require.NoError(t, err)
				require.ElementsMatch(t, c.want, names)

				return
			}

			var invalid *rings.InvalidError
			require.ErrorAs(t, err, &invalid)

			var fields []string
			for _, v := range invalid.Violations {
				fields = append(fields, v.Field)
				require.NotEmpty(t, v.Description)
			}
			require.Equal(t, c.fields, fields)
		})
	}
}

func TestWhatMoves(t *testing.T) {
	shards := func(n int) (names []string) {
		for i := range n {
			names = append(names, fmt.Sprintf("shard-%03d", i))
		}

		return names
	}

	for name, c := range map[string]struct {
		before, after []string
		least         float64
		most          float64 // of what moves
	}{
		"nothing":         {shards(3), shards(3), 0, 0},
		"none at all":     {nil, nil, 0, 0},
		"the first":       {nil, shards(3), 1, 1},
		"the last leaves": {shards(3), nil, 1, 1},
		"one joins":       {shards(3), shards(4), 0.25, 0.26},
		"one leaves":      {shards(10), shards(9), 0.1, 0.11},
		"one is renamed":  {shards(4), append(shards(3), "x"), 0.25, 0.44},
		"all are renamed": {shards(2), []string{"x", "y"}, 1, 1},
		"many":            {shards(50), shards(100), 0.5, 0.6},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := hashring.New(c.before), hashring.New(c.after)
			sim := compare(before, after)
			require.InDelta(t, c.least, sim.GetLeast(), 1e-9)
			require.GreaterOrEqual(t, sim.GetMoved(), c.least*0.98)
			require.LessOrEqual(t, sim.GetMoved(), c.most)
			require.Equal(t, before.Fingerprint(), sim.GetFingerprintBefore())
			require.Equal(t, after.Fingerprint(), sim.GetFingerprintAfter())

			was, is := 0, 0

			for i, s := range sim.GetShards() {
				require.True(t, i == 0 || sim.GetShards()[i-1].GetName() < s.GetName())
				require.True(t, before.Has(s.GetName()) || after.Has(s.GetName()))
				was, is = was+int(s.GetPartitionsBefore()), is+int(s.GetPartitionsAfter())
			}
			require.Contains(t, []int{0, hashring.Partitions}, was)
			require.Equal(t, len(c.before) > 0, was > 0)
			require.Equal(t, len(c.after) > 0, is == hashring.Partitions)
		})
	}
}

func TestObjectsAreCountedWhereTheyBelong(t *testing.T) {
	before, after := hashring.New([]string{"a", "b"}), hashring.New([]string{"a", "c"})
	sim := compare(before, after)
	count := newTally(before, after, sim.GetShards())

	const objects = 1000

	moved := 0

	for i := range objects {
		if count.add(rings.Key{Key: key.Key{Kind: "ConfigMap", Namespace: "default", Name: fmt.Sprint(i)}}) {
			moved++
		}
	}
	require.InDelta(t, sim.GetMoved(), float64(moved)/objects, 0.05)
	a, b, c := sim.GetShards()[0], sim.GetShards()[1], sim.GetShards()[2]
	require.EqualValues(t, objects, a.GetObjectsBefore()+b.GetObjectsBefore())
	require.EqualValues(t, objects, a.GetObjectsAfter()+c.GetObjectsAfter())
	require.Zero(t, b.GetObjectsAfter())
	require.Zero(t, c.GetObjectsBefore())

	none := newTally(hashring.New(nil), hashring.New(nil), nil)
	require.False(t, none.add(rings.Key{Key: key.Key{Name: "x"}}))
}
