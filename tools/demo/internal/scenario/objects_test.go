package scenario

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/testkit/check"
)

// site is a version of the Website x, child of a ConfigMap that it controls.
func site(number uint64, shard string) check.Version {
	return check.Version{Kind: check.Website, Namespace: "n", Name: "x", UID: "x", Shard: shard, Number: number}
}

func child(number uint64, name, shard string) check.Version {
	return check.Version{
		Kind: check.ConfigMap, Namespace: "n", Name: name, UID: "cm-" + name, Owner: "x", Shard: shard, Number: number,
	}
}

func draining(v check.Version) check.Version { v.Draining = true; return v }
func deleted(v check.Version) check.Version  { v.Deleted = true; return v }

func seen(versions ...check.Version) objects { return objects(nil).after(versions) }

func TestObjects(t *testing.T) {
	lease := check.Version{Kind: check.Lease, Name: "a", UID: "lease"}
	foreign := check.Version{Kind: check.ConfigMap, Name: "kube-root-ca.crt", UID: "foreign"}
	before := seen(lease, foreign, site(1, "a"), child(2, "x", "a"), child(3, "y", ""))
	require.Len(t, before, 3)
	require.Equal(t, 2, before.at("a"))
	require.Equal(t, spread{"a": 2, "b": 0, "": 1}, before.count("a", "b"))
	require.Equal(t, seen(site(1, "a")), before.websites())

	after := before.after([]check.Version{site(4, "b"), deleted(child(5, "x", "a"))})
	require.Equal(t, seen(site(4, "b"), child(3, "y", "")), after)
	require.Len(t, before, 3, "unchanged")
	require.Equal(t, []change{{site(1, "a"), site(4, "b")}}, before.moves(after))
}

func TestChanges(t *testing.T) {
	all := seen(site(1, "a")).changes([]check.Version{
		site(2, "a"), draining(site(3, "a")), site(4, ""), site(5, "b"), child(6, "x", "b"), deleted(child(7, "x", "b")),
	})

	require.Equal(t, []change{
		{site(2, "a"), draining(site(3, "a"))},
		{draining(site(3, "a")), site(4, "")},
		{site(4, ""), site(5, "b")},
		{check.Version{}, child(6, "x", "b")},
		{child(6, "x", "b"), deleted(child(7, "x", "b"))},
	}, all)

	var moved []bool
	for _, c := range all {
		moved = append(moved, c.moved())
	}
	require.Equal(t, []bool{false, true, false, false, false}, moved)
	require.Regexp(t, `v3 .* x shard="a" draining became .* v4 .* x shard=""$`, all[1].String())
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
		"a new child, nowhere yet, and its owner where it was": {
			versions: []check.Version{child(5, "y", ""), child(6, "y", "a")},
		},
		"a new child is left behind": {
			versions: []check.Version{left, follows, child(11, "y", ""), comes},
			wrong:    []string{`Website n/x came to b before ConfigMap n/y, which was at ""`},
		},
		"the child is gone": {versions: []check.Version{left, deleted(child(11, "x", "a")), comes}},
		"the child is gone later": {
			versions: []check.Version{left, site(11, "b"), deleted(child(12, "x", "a"))},
			wrong:    []string{`Website n/x came to b before ConfigMap n/x, which was at "a"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.wrong, seen(site(1, "a"), child(2, "x", "a")).disordered(test.versions))
		})
	}
}

func TestSpread(t *testing.T) {
	for name, test := range map[string]struct {
		spread           spread
		maxToMean, bound float64
		text             string
	}{
		"even": {spread{"a": 100, "b": 100}, 1, 1.26, "200 objects over 2 shards, max/mean 1.00 (bound 1.26)"},
		"uneven": {spread{"a": 300, "b": 100, "c": 0, "d": 0}, 3, 1.31,
			"400 objects over 4 shards, max/mean 3.00 (bound 1.31)"},
		"one":     {spread{"only": 7}, 1, 1.05, "7 objects over 1 shards, max/mean 1.00 (bound 1.05)"},
		"nothing": {spread{"a": 0}, 0, 1.05, "0 objects over 1 shards, max/mean 0.00 (bound 1.05)"},
	} {
		maxToMean, bound := test.spread.evenness()
		require.InDelta(t, test.maxToMean, maxToMean, 0, name)
		require.InDelta(t, test.bound, bound, 0.005, name)
		require.Equal(t, test.text, test.spread.String())
	}

}
