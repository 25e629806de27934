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
	require.Equal(t, map[string]int{"a": 2, "": 1}, before.count())
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
