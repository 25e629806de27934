package observe_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/demo/internal/observe"
)

func TestDisordered(t *testing.T) {
	alive := func(shard string) bool { return shard != "dead" }
	change := func(version uint64, key observe.Key, after observe.State) observe.Change {
		return observe.Change{Key: key, After: after, Version: version}
	}

	left, follows, comes := change(10, site("x"), at("")), change(11, child("x"), owned("b")), change(12, site("x"), at("b"))
	for name, test := range map[string]struct {
		before  observe.Snapshot
		changes []observe.Change
		wrong   []string
	}{
		"the child goes first": {changes: []observe.Change{left, follows, comes}},
		// Watches of two resources are not in step with each other: the versions count.
		"the child goes first, and is seen last":        {changes: []observe.Change{comes, left, follows}},
		"the owner goes first":                          {changes: []observe.Change{left, change(11, site("x"), at("b"))}, wrong: []string{`websites n/x came to b before configmaps n/x, which was at "a"`}},
		"the child does not wait until it was given up": {changes: []observe.Change{change(9, child("x"), owned("b"))}, wrong: []string{`configmaps n/x left a for "b" before its owner did`}},
		"of a dead shard": {
			before:  observe.Snapshot{site("x"): at("dead"), child("x"): owned("dead")},
			changes: []observe.Change{follows, comes},
		},
		"a new child, nowhere yet, and its owner where it was": {changes: []observe.Change{change(5, child("y"), owned("")), change(6, child("y"), owned("a"))}},
		"a new child is left behind": {
			changes: []observe.Change{left, follows, change(11, child("y"), owned("")), comes},
			wrong:   []string{`websites n/x came to b before configmaps n/y, which was at ""`},
		},
		"released after the owner":  {changes: []observe.Change{left, change(11, child("x"), owned(""))}},
		"released before the owner": {changes: []observe.Change{change(9, child("x"), owned("")), left}, wrong: []string{`configmaps n/x left a for "" before its owner did`}},
		"the child is gone":         {changes: []observe.Change{left, {Key: child("x"), Deleted: true, Version: 11}, comes}},
	} {
		t.Run(name, func(t *testing.T) {
			if test.before == nil {
				test.before = observe.Snapshot{site("x"): at("a"), child("x"): owned("a")}
			}
			require.Equal(t, test.wrong, observe.Disordered(test.before, test.changes, sites, alive))
		})
	}
}
