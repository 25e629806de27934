package observe_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/demo/internal/observe"
)

const (
	sites = "websites"
	maps  = "configmaps"
)

func site(name string) observe.Key  { return observe.Key{Resource: sites, Namespace: "n", Name: name} }
func child(name string) observe.Key { return observe.Key{Resource: maps, Namespace: "n", Name: name} }

var draining = observe.State{Shard: "a", Draining: true}

func at(shard string) observe.State { return observe.State{Shard: shard} }

func owned(shard string) observe.State { return observe.State{Shard: shard, Owner: "x"} }

func TestUndrained(t *testing.T) {
	alive := func(shard string) bool { return shard != "dead" }

	for name, test := range map[string]struct {
		change observe.Change
		wrong  bool
	}{
		"assigned":                      {change: observe.Change{After: at("a")}},
		"drain wanted":                  {change: observe.Change{Before: at("a"), After: draining}},
		"drain withdrawn":               {change: observe.Change{Before: draining, After: at("a")}},
		"drained":                       {change: observe.Change{Before: draining, After: at("b")}},
		"drained, not yet assigned":     {change: observe.Change{Before: draining}},
		"not drained":                   {change: observe.Change{Before: at("a"), After: at("b")}, wrong: true},
		"not drained, not yet assigned": {change: observe.Change{Before: at("a")}, wrong: true},
		"from a dead shard":             {change: observe.Change{Before: at("dead"), After: at("b")}},
		"deleted":                       {change: observe.Change{Before: at("a"), Deleted: true}},
		"controlled":                    {change: observe.Change{Before: owned("a"), After: owned("b")}},
	} {
		t.Run(name, func(t *testing.T) {
			test.change.Key = site("x")
			wrong := observe.Undrained([]observe.Change{test.change}, alive)
			require.Equal(t, test.wrong, len(wrong) == 1, wrong)
		})
	}
}

func TestCompare(t *testing.T) {
	before := observe.Snapshot{site("1"): at("a"), site("2"): at("a"), site("3"): at("b"), site("4"): at("b"), site("5"): at("a")}
	after := observe.Snapshot{site("1"): at("c"), site("2"): at("a"), site("3"): at("a"), site("4"): at("b"), site("6"): at("c")}

	m := observe.Compare(before, after, func(_, to string) bool { return to == "c" })

	require.Equal(t, 2, m.Moved)
	require.Equal(t, map[string]int{"c": 1, "a": 1}, m.To)
	require.Equal(t, []string{`websites n/3 went from b to "a"`}, m.Wrong)
}

func TestSnapshot(t *testing.T) {
	s := observe.Snapshot{site("1"): at("a"), site("2"): draining, site("3"): at("")}
	require.ElementsMatch(t, []observe.Key{site("1"), site("2")}, s.At("a"))
	require.Equal(t, map[string]int{"a": 2, "b": 0, "": 1}, s.Count([]string{"a", "b"}))
	require.Equal(t, 1, s.Draining())
	require.Len(t, s.Only(func(key observe.Key, _ observe.State) bool { return key.Name != "3" }), 2)
	require.Len(t, s, 3)
}
