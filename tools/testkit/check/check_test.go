package check_test

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/testkit/check"
)

const second = time.Second

// at completes a version: it is seen as many seconds after the beginning as its number says.
func at(number uint64, v check.Version) check.Version {
	v.Number, v.At = number, time.Duration(number)*second
	return v
}

func lease(number uint64, shard, holder string) check.Version {
	return at(number, check.Version{Kind: check.Lease, Name: shard, UID: "lease-" + shard, Holder: holder,
		Duration: second})
}

func site(number uint64, shard string) check.Version {
	return at(number, check.Version{Kind: check.Website, Name: "x", UID: "x", Shard: shard})
}

func child(number uint64, shard string) check.Version {
	return at(number, check.Version{Kind: check.ConfigMap, Name: "x", UID: "cm", Shard: shard, Owner: "x"})
}

func fleet(number uint64, shard string) check.Version {
	return at(number, check.Version{Kind: check.Fleet, Name: "f", UID: "f", Shard: shard, Replicas: 2})
}

func ship(number uint64, name, shard string) check.Version {
	return at(number, check.Version{Kind: check.Ship, Name: name, UID: name, Shard: shard, Owner: "f"})
}

func draining(v check.Version) check.Version { v.Draining = true; return v }
func deleted(v check.Version) check.Version  { v.Deleted = true; return v }

func span(uid, shard string, from, to int) check.Span {
	return check.Span{
		Kind: "K", Name: uid, UID: uid, Worker: check.Worker{Shard: shard, PID: int(shard[0])},
		Start: time.Duration(from) * second, End: time.Duration(to) * second,
	}
}

func TestCheck(t *testing.T) {
	with := func(versions ...check.Version) []check.Version {
		return append([]check.Version{lease(1, "a", "a"), lease(2, "b", "b")}, versions...)
	}
	for name, test := range map[string]struct {
		run  check.Run
		want []string // how the violations begin
	}{
		"nothing": {},
		"handed over": {run: check.Run{
			Versions: with(site(3, "a"), draining(site(4, "a")), site(6, "b"), child(5, "a"), child(7, "b")),
			GivenUp:  map[uint64]string{6: "a"},
			Spans:    []check.Span{span("x", "a", 3, 5), span("cm", "a", 4, 5), span("x", "b", 6, 8), span("cm", "b", 7, 9)},
		}},
		"two at one object": {run: check.Run{
			Spans: []check.Span{span("x", "a", 3, 5), span("x", "b", 4, 6)},
		}, want: []string{"I1: a (process 97) and b (process 98) worked on K x and K x at the same time, from 4s to 5s"}},
		"two at an object and its child": {run: check.Run{
			Versions: with(site(3, "b"), child(4, "b")),
			Spans:    []check.Span{span("x", "a", 3, 5), span("cm", "b", 4, 6)},
		}, want: []string{"I1: a (process 97) and b (process 98) worked on K x and K cm"}},
		"one frozen within": {run: check.Run{
			Frozen: []check.Frozen{{PID: 'a', From: 4 * second, Until: 7 * second}},
			Spans:  []check.Span{span("x", "a", 3, 8), span("x", "b", 5, 6)},
		}},
		"one frozen that begins anew": {run: check.Run{
			Frozen: []check.Frozen{{PID: 'a', From: 2 * second, Until: 3 * second}},
			Spans:  []check.Span{span("x", "a", 4, 8), span("x", "b", 5, 6)},
		}, want: []string{"I1: a (process 97) and b"}},
		"begins after its Lease was taken": {run: check.Run{
			Versions: with(lease(5, "a", "shardlease-controller")),
			Spans:    []check.Span{span("x", "a", 3, 4), span("x", "a", 6, 7)},
		}, want: []string{`I1: a (process 97) began to work on K x at 6s, though its Lease was "shardlease-controller"'s since 5s`}},
		"a successor of the same name begins": {run: check.Run{
			Versions: with(lease(5, "a", ""), lease(6, "a", "a")),
			Spans: []check.Span{span("x", "a", 3, 4), {
				Kind: "K", Name: "x", UID: "x", Worker: check.Worker{Shard: "a", PID: 1}, Start: 7 * second, End: 8 * second,
			}},
		}},
		"taken from a shard that is dead": {run: check.Run{Versions: with(site(3, "a"),
			lease(4, "a", "shardlease-controller"), site(5, "b"))}},
		"taken from a shard that holds its Lease": {
			run:  check.Run{Versions: with(site(3, "a"), site(5, "b"))},
			want: []string{`I6: Website x left a, which held its Lease, for "b" in version 5: it was not draining`},
		},
		"taken though it was only asked for": {
			run:  check.Run{Versions: with(site(3, "a"), draining(site(4, "a")), site(5, "b"))},
			want: []string{`I6: Website x left a, which held its Lease, for "b" in version 5: the shard did not give it up ("" did)`},
		},
		"given up by another": {
			run: check.Run{Versions: with(site(3, "a"), draining(site(4, "a")), site(5, "")),
				GivenUp: map[uint64]string{5: "b"}},
			want: []string{`I6: Website x left a, which held its Lease, for "" in version 5: the shard did not give it up ("b" did)`},
		},
		"child before its owner": {
			run:  check.Run{Versions: with(site(3, "a"), child(4, "a"), child(5, "b"))},
			want: []string{`I6: ConfigMap x left a, which held its Lease, for "b" in version 5: its owner had not left`},
		},
		"taken too soon after the Lease was deleted": {
			run:  check.Run{Versions: with(site(3, "a"), deleted(lease(4, "a", "a")), site(5, "b"))},
			want: []string{"I6: Website x left a"},
		},
		"taken long after the Lease was deleted": {
			run: check.Run{Versions: with(site(3, "a"), deleted(lease(4, "a", "a")), site(6, "b")), Bound: 2 * second},
		},
		"assigned late": {
			run:  check.Run{Versions: with(site(3, ""), site(6, "b")), Bound: 2 * second},
			want: []string{"I2: Website x had no available shard for 3s (at most 2s)"},
		},
		"never assigned": {
			run:  check.Run{Versions: with(child(3, "")), End: 9 * second, Bound: 2 * second},
			want: []string{"I2: ConfigMap x had no available shard for 6s"},
		},
		"left with a dead shard": {
			run:  check.Run{Versions: with(site(3, "a"), lease(4, "a", "")), End: 9 * second, Bound: 2 * second},
			want: []string{"I2: Website x had no available shard for 5s"},
		},
		"nobody there to get it": {
			run: check.Run{Versions: []check.Version{site(3, ""), lease(5, "a", "a"), site(6, "a")}, Bound: 2 * second},
		},
		"deleted unassigned": {
			run: check.Run{Versions: with(site(3, ""), deleted(site(4, ""))), End: 9 * second, Bound: 2 * second},
		},
		"as many Ships as there shall be, at several shards": {
			run: check.Run{Versions: with(fleet(3, "a"), ship(4, "one", "a"), ship(5, "two", ""), ship(6, "two", "b"))},
		},
		"a Ship in excess": {
			run:  check.Run{Versions: with(fleet(3, "a"), ship(4, "one", "a"), ship(5, "two", "a"), ship(6, "three", "a"))},
			want: []string{"I9: 3 Ships of Fleet f were created, but its spec demands 2; the first excess Ship is three, in"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.run.Bound = cmp.Or(test.run.Bound, time.Hour)
			found := check.Check(test.run)
			require.Len(t, found, len(test.want), "%v", found)

			for i, v := range found {
				require.True(t, strings.HasPrefix(v.String(), test.want[i]), "%v", v)
				require.NotEmpty(t, v.Excerpt)
			}
		})
	}
}

func TestExcessOfAll(t *testing.T) {
	ofFleet := func(uid string, replicas int) check.Version {
		return check.Version{Kind: check.Fleet, UID: uid, Replicas: replicas}
	}
	of := func(fleet, ship string) check.Version {
		return check.Version{Kind: check.Ship, UID: ship, Owner: fleet}
	}
	excess, missing := check.Excess([]check.Version{
		ofFleet("a", 2), ofFleet("b", 2), ofFleet("c", 4),
		of("a", "1"), of("a", "1"), of("a", "2"), of("b", "3"), of("b", "4"), of("b", "5"), of("", "6"),
	})
	require.Equal(t, 1, excess)
	require.Equal(t, 4, missing)
}

func TestGivenUpWithoutADrain(t *testing.T) {
	found := check.Check(check.Run{
		Versions: []check.Version{lease(1, "a", "a"), lease(2, "b", "b"), site(3, "a"), site(5, "b")},
		GivenUp:  map[uint64]string{5: "a"}, Bound: time.Hour,
	})
	require.Len(t, found, 1)
	require.Contains(t, found[0].String(),
		`I6: Website x left a, which held its Lease, for "b" in version 5: it was not draining`)
}

func TestMoves(t *testing.T) {
	require.Equal(t, 2,
		check.Moves([]check.Version{fleet(1, ""), fleet(2, "a"), fleet(3, ""), fleet(4, "a"), fleet(5, "b"), fleet(6, ""),
			fleet(7, "c")}))
}

func TestFinal(t *testing.T) {
	some := fleet(1, "a")
	some.Complete = true
	site := check.Version{Kind: check.Website, Name: "x", UID: "1", Shard: "a", Complete: true}
	page := check.Version{Kind: check.ConfigMap, Name: "x", UID: "2", Owner: "1", Shard: "a"}

	change := func(v check.Version, by func(*check.Version)) check.Version {
		by(&v)
		return v
	}
	for name, test := range map[string]struct {
		objects []check.Version
		want    []string
	}{
		"nothing":  {},
		"complete": {objects: []check.Version{site, page}},
		"no shard": {
			[]check.Version{change(site, func(v *check.Version) { v.Shard = "" }),
				change(page, func(v *check.Version) { v.Shard = "" })},
			[]string{`Website x is at shard "", which is not available`, `ConfigMap x is at shard "", which is not available`},
		},
		"a shard that is gone": {
			[]check.Version{change(site, func(v *check.Version) { v.Shard = "c" }),
				change(page, func(v *check.Version) { v.Shard = "c" })},
			[]string{`Website x is at shard "c", which is not available`, `ConfigMap x is at shard "c", which is not available`},
		},
		"draining": {
			[]check.Version{change(site, func(v *check.Version) { v.Draining = true }), page},
			[]string{"Website x is still draining"},
		},
		"apart": {
			[]check.Version{site, change(page, func(v *check.Version) { v.Shard = "b" })},
			[]string{`ConfigMap x is at b, its owner at a`},
		},
		"not done": {
			[]check.Version{change(site, func(v *check.Version) { v.Complete = false }), page},
			[]string{"Website x does not report that the work on it is done"},
		},
		"two Ships": {objects: []check.Version{some, ship(2, "one", "a"), ship(3, "two", "a")}},
		"one Ship": {
			[]check.Version{some, ship(2, "one", "a")}, []string{"Fleet f has 1 Ships, not 2"},
		},
		"no child":              {[]check.Version{site}, []string{"Website x has no ConfigMap"}},
		"the child comes first": {objects: []check.Version{page, site}},
		"being collected":       {objects: []check.Version{page}},
		"of no Website":         {objects: []check.Version{{Kind: check.ConfigMap, Name: "foreign", UID: "3"}}},
	} {
		t.Run(name, func(t *testing.T) {
			var texts []string
			for _, v := range check.Final(check.State{Versions: test.objects, Available: []string{"a", "b"}}) {
				texts = append(texts, v.Text)
			}
			require.Equal(t, test.want, texts)
		})
	}
}

func TestSafety(t *testing.T) {
	for name, test := range map[string]struct {
		run  check.Run
		want []string // invariants
	}{
		"a draining object leaves, no matter who wrote it": {run: check.Run{
			Versions: []check.Version{site(6, "b"), draining(site(4, "a")), site(3, "a"), lease(1, "a", "a")},
		}},
		"an object is without a shard for long": {run: check.Run{
			Versions: []check.Version{lease(1, "a", "a"), site(3, "gone"), site(60, "a")},
		}},
		"frozen while another one works": {run: check.Run{
			Versions: []check.Version{lease(1, "a", "a"), lease(4, "a", "b")},
			Frozen:   []check.Frozen{{PID: 'a', From: 3 * second, Until: 7 * second}},
			Spans:    []check.Span{span("x", "a", 2, 8), span("x", "b", 5, 6)},
		}},
		"frozen before another one works, and continues": {run: check.Run{
			Frozen: []check.Frozen{{PID: 'a', From: 3 * second, Until: 7 * second}},
			Spans:  []check.Span{span("x", "a", 2, 9), span("x", "b", 5, 8)},
		}, want: []string{"I1"}},
		"all others": {run: check.Run{
			Versions: []check.Version{
				lease(1, "a", "a"), lease(4, "a", "b"), fleet(5, "a"), ship(6, "1", "a"), ship(7, "2", "a"), ship(8, "3", "a"),
			},
			Spans: []check.Span{span("x", "a", 2, 3), span("x", "b", 2, 3), span("x", "a", 9, 10)},
		}, want: []string{"I1", "I1", "I9"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, v := range check.Safety(test.run) {
				got = append(got, v.Invariant)
			}
			require.Equal(t, test.want, got)
		})
	}
}
