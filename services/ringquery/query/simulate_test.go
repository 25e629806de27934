package query

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
)

func TestChangesOfShards(t *testing.T) {
	ring := hashring.New([]string{"a", "b", "c"})

	for name, c := range map[string]struct {
		change Change
		want   []string
		fields []string
	}{
		"nothing":    {Change{}, []string{"a", "b", "c"}, nil},
		"add":        {Change{Add: []string{"e", "d"}}, []string{"a", "b", "c", "d", "e"}, nil},
		"remove":     {Change{Remove: []string{"b"}}, []string{"a", "c"}, nil},
		"remove all": {Change{Remove: []string{"a", "b", "c"}}, nil, nil},
		"rename":     {Change{Rename: []Rename{{"a", "z"}}}, []string{"b", "c", "z"}, nil},
		"all at once": {
			Change{Add: []string{"d"}, Remove: []string{"c"}, Rename: []Rename{{"a", "x"}, {"b", "y"}}}, []string{"d", "x", "y"}, nil,
		},

		"added twice":          {Change{Add: []string{"d", "d"}}, nil, []string{"add[1]"}},
		"add what is there":    {Change{Add: []string{"a"}}, nil, []string{"add[0]"}},
		"remove what is not":   {Change{Remove: []string{"d"}}, nil, []string{"remove[0]"}},
		"removed twice":        {Change{Remove: []string{"a", "a"}}, nil, []string{"remove[1]"}},
		"removed and added":    {Change{Add: []string{"a"}, Remove: []string{"a"}}, nil, []string{"add[0]"}},
		"rename what is not":   {Change{Rename: []Rename{{"d", "e"}}}, nil, []string{"rename[0].from"}},
		"rename to itself":     {Change{Rename: []Rename{{"a", "a"}}}, nil, []string{"rename[0].to"}},
		"rename to what is":    {Change{Rename: []Rename{{"a", "b"}}}, nil, []string{"rename[0].to"}},
		"renamed and removed":  {Change{Remove: []string{"a"}, Rename: []Rename{{"a", "d"}}}, nil, []string{"rename[0].from"}},
		"renamed to the added": {Change{Add: []string{"d"}, Rename: []Rename{{"a", "d"}}}, nil, []string{"add[0]"}},
		"every mistake":        {Change{Add: []string{"a"}, Remove: []string{"x"}, Rename: []Rename{{"y", "b"}}}, nil, []string{"remove[0]", "rename[0].from", "rename[0].to", "add[0]"}},
	} {
		t.Run(name, func(t *testing.T) {
			names, err := c.change.apply(ring)
			if c.fields == nil {
				require.NoError(t, err)
				require.ElementsMatch(t, c.want, names)

				return
			}
			var invalid *InvalidError
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
			require.InDelta(t, c.least, sim.Least, 1e-9)
			require.GreaterOrEqual(t, sim.Moved, c.least*0.98)
			require.LessOrEqual(t, sim.Moved, c.most)
			require.Equal(t, before.Fingerprint(), sim.Before)
			require.Equal(t, after.Fingerprint(), sim.After)

			was, is := 0, 0
			for i, s := range sim.Shards {
				require.True(t, i == 0 || sim.Shards[i-1].Name < s.Name)
				require.True(t, before.Has(s.Name) || after.Has(s.Name))
				was, is = was+s.PartitionsBefore, is+s.PartitionsAfter
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
	count := newTally(before, after, sim.Shards)

	const objects = 1000
	moved := 0
	for i := range objects {
		if count.add(key.Key{Kind: "ConfigMap", Namespace: "default", Name: fmt.Sprint(i)}) {
			moved++
		}
	}
	require.InDelta(t, sim.Moved, float64(moved)/objects, 0.05)
	a, b, c := sim.Shards[0], sim.Shards[1], sim.Shards[2]
	require.EqualValues(t, objects, a.ObjectsBefore+b.ObjectsBefore)
	require.EqualValues(t, objects, a.ObjectsAfter+c.ObjectsAfter)
	require.Zero(t, b.ObjectsAfter)
	require.Zero(t, c.ObjectsBefore)

	none := newTally(hashring.New(nil), hashring.New(nil), nil)
	require.False(t, none.add(key.Key{Name: "x"}))
}
