package observe_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/demo/internal/observe"
	"github.com/clusterring/clusterring/tools/testkit/check"
)

// site is a version of the Website x, child of a ConfigMap that it controls.
func site(number uint64, shard string) check.Version {
	return check.Version{Kind: check.Website, Namespace: "n", Name: "x", UID: "x", Shard: shard, Number: number}
}

func child(number uint64, name, shard string) check.Version {
	return check.Version{Kind: check.ConfigMap, Namespace: "n", Name: name, UID: "cm-" + name, Owner: "x", Shard: shard, Number: number}
}

func draining(v check.Version) check.Version { v.Draining = true; return v }
func deleted(v check.Version) check.Version  { v.Deleted = true; return v }

func objects(versions ...check.Version) observe.Objects { return observe.Objects(nil).After(versions) }

func TestObjects(t *testing.T) {
	lease := check.Version{Kind: check.Lease, Name: "a", UID: "lease"}
	foreign := check.Version{Kind: check.ConfigMap, Name: "kube-root-ca.crt", UID: "foreign"}
	before := objects(lease, foreign, site(1, "a"), child(2, "x", "a"), child(3, "y", ""))
	require.Len(t, before, 3)
	require.Equal(t, 2, before.At("a"))
	require.Equal(t, map[string]int{"a": 2, "b": 0, "": 1}, before.Count([]string{"a", "b"}))
	require.Equal(t, objects(site(1, "a")), before.Of(check.Website))

	after := before.After([]check.Version{site(4, "b"), deleted(child(5, "x", "a"))})
	require.Equal(t, objects(site(4, "b"), child(3, "y", "")), after)
	require.Len(t, before, 3, "unchanged")
	require.Equal(t, []observe.Change{{site(1, "a"), site(4, "b")}}, observe.Moves(before, after))
}

func TestChanges(t *testing.T) {
	changes := observe.Changes(objects(site(1, "a")), []check.Version{
		site(2, "a"), draining(site(3, "a")), site(4, ""), site(5, "b"), child(6, "x", "b"), deleted(child(7, "x", "b")),
	})

	require.Equal(t, []observe.Change{
		{site(2, "a"), draining(site(3, "a"))},
		{draining(site(3, "a")), site(4, "")},
		{site(4, ""), site(5, "b")},
		{check.Version{}, child(6, "x", "b")},
		{child(6, "x", "b"), deleted(child(7, "x", "b"))},
	}, changes)

	var moved []bool
	for _, c := range changes {
		moved = append(moved, c.Moved())
	}
	require.Equal(t, []bool{false, true, false, false, false}, moved)
	require.Regexp(t, `v3 .* x shard="a" draining became .* v4 .* x shard=""$`, changes[1].String())
}

func TestDisordered(t *testing.T) {
	left, follows, comes := site(10, ""), child(11, "x", "b"), site(12, "b")
	for name, test := range map[string]struct {
		versions []check.Version
		wrong    []string
	}{
		"the child goes first": {versions: []check.Version{left, follows, comes}},
		// Watches of two resources are not in step with each other: the numbers count.
		"the child goes first, and is seen last": {versions: []check.Version{comes, left, follows}},
		"the owner goes first": {
			versions: []check.Version{left, site(11, "b")},
			wrong:    []string{`Website n/x came to b before ConfigMap n/x, which was at "a"`},
		},
		"a new child, nowhere yet, and its owner where it was": {versions: []check.Version{child(5, "y", ""), child(6, "y", "a")}},
		"a new child is left behind": {
			versions: []check.Version{left, follows, child(11, "y", ""), comes},
			wrong:    []string{`Website n/x came to b before ConfigMap n/y, which was at ""`},
		},
		"the child is gone":       {versions: []check.Version{left, deleted(child(11, "x", "a")), comes}},
		"the child is gone later": {versions: []check.Version{left, site(11, "b"), deleted(child(12, "x", "a"))}, wrong: []string{`Website n/x came to b before ConfigMap n/x, which was at "a"`}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.wrong, observe.Disordered(objects(site(1, "a"), child(2, "x", "a")), test.versions))
		})
	}
}
