package check_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/testkit/check"
)

func TestSafety(t *testing.T) {
	for name, test := range map[string]struct {
		run  check.Run
		want []string // invariants
	}{
		"a draining object leaves, whoever wrote it": {run: check.Run{
			Versions: []check.Version{site(6, "b"), draining(site(4, "a")), site(3, "a"), lease(1, "a", "a")},
		}},
		"another writer is known": {run: check.Run{
			Versions: []check.Version{lease(1, "a", "a"), site(3, "a"), draining(site(4, "a")), site(6, "b")},
			GivenUp:  map[uint64]string{6: "c"},
		}, want: []string{"I6"}},
		"an object leaves without a drain": {run: check.Run{
			Versions: []check.Version{lease(1, "a", "a"), site(3, "a"), site(6, "b")},
		}, want: []string{"I6"}},
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
