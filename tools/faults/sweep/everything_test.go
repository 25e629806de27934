package sweep

import (
	"context"
	"errors"
	"testing"

	"github.com/clusterring/clusterring/tools/faults/faultrun"
)

// TestEverythingAtOnce has two rings that share a resource and a namespace, one of them with a cluster-scoped resource, too;
// Websites that are written through two versions of their API; what they control; two replicas of every service, of which
// first the one and then the other is killed; shards that join, fail and leave in both rings; and one ring that is deleted.
func TestEverythingAtOnce(t *testing.T) {
	s := theSuite(t)
	kill := func(suffix string) func(context.Context, *faultrun.Run) error {
		return func(_ context.Context, run *faultrun.Run) error {
			var errs []error
			for _, name := range []string{faultrun.LeaseMonitor, faultrun.Assigner, faultrun.Rebalancer, faultrun.RingQuery} {
				errs = append(errs, run.Member(name+suffix).Process().Kill())
			}

			return errors.Join(errs...)
		}
	}
	agree := func(ctx context.Context, run *faultrun.Run) error { return run.OwnersAgree(ctx) }
	s.run(t, faultrun.Case{
		Name: "two rings, several resources and versions, leaders killed", Replicas: 2, Query: true,
		Rings: []faultrun.RingSpec{
			{Name: "first", Namespaces: []string{"only-first", "both"}, Shards: []string{"a", "b", "c", "d"}},
			{Name: "second", Namespaces: []string{"both", "only-second"}, Shards: []string{"e", "f", "g", "h"}, Themes: true},
		},
		During: during{faultrun.Join: kill(""), faultrun.Fail: kill("-2")},
		After: during{faultrun.Begin: agree, faultrun.Join: agree, faultrun.Fail: func(ctx context.Context, run *faultrun.Run) error {
			return errors.Join(agree(ctx, run), run.Overlaps("first", "second"))
		}, faultrun.Delete: agree},
	})
}
