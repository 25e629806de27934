package sweep

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/clusterring/clusterring/tools/faults/faultrun"
	"github.com/clusterring/clusterring/tools/faults/proxy"
)

// failures are the ways in which a write fails.
var failures = []struct {
	name   string
	action proxy.Action
}{
	{"conflict", proxy.Action{Status: http.StatusConflict}},
	{"too many requests", proxy.Action{Status: http.StatusTooManyRequests}},
	{"internal error", proxy.Action{Status: http.StatusInternalServerError}},
	{"timeout before", proxy.Action{Status: http.StatusGatewayTimeout}},
	{"timeout though applied", proxy.Action{Lose: true, Status: http.StatusGatewayTimeout}},
	{"connection closed before", proxy.Action{Abort: true}},
	{"connection closed though applied", proxy.Action{Lose: true}},
}

// TestWrites fails the first and the third write of each kind, in each of these ways: once for all services, and once for
// all shards, but for the renewals of their Leases.
func TestWrites(t *testing.T) {
	s := theSuite(t)

	var cases []faultrun.Case

	for _, f := range failures {
		for _, shards := range []bool{false, true} {
			who := "services"
			if shards {
				who = "shards"
			}

			var counted counter

			cases = append(cases, faultrun.Case{Name: f.name + " for writes of " + who, Prepare: func(run *faultrun.Run) {
				for _, m := range run.Members(shards) {
					m.Proxy.Hook(func(write proxy.Write) proxy.Action {
						renewal := shards && write.Resource == "leases"
						if n := counted.next(classify(run, m, write)).ordinal; !renewal && (n == 1 || n == 3) {
							return f.action
						}

						return proxy.Action{}
					})
				}
			}})
		}
	}
	s.run(t, cases...)
}

// wait lets a fault last. It ends early with the test.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

type during = map[faultrun.Phase]func(context.Context, *faultrun.Run) error

// TestWatches delays the events of watches by a second, and loses them for longer than it takes to give a shard up.
func TestWatches(t *testing.T) {
	s := theSuite(t)
	everybody := []string{"", faultrun.LeaseMonitor, faultrun.Assigner, faultrun.Rebalancer, shard}

	var cases []faultrun.Case

	for _, who := range everybody {
		concerned := func(run *faultrun.Run) []*faultrun.Member {
			switch who {
			case "":
				return run.Members(false)
			case shard:
				return run.Members(true)
			default:
				return []*faultrun.Member{run.Member(who)}
			}
		}

		name := who
		if who == "" {
			name = "every service"
		}

		set := func(watching proxy.Watching) func(context.Context, *faultrun.Run) error {
			return func(_ context.Context, run *faultrun.Run) error {
				for _, m := range concerned(run) {
					m.Proxy.Watches(watching)
				}

				return nil
			}
		}

		cases = append(cases, faultrun.Case{
			Name:    "events come a second late to " + name,
			Prepare: func(run *faultrun.Run) { _ = set(proxy.Watching{Delay: time.Second})(nil, run) },
		})
		again := func(ctx context.Context, run *faultrun.Run) error {
			if err := wait(ctx, 2500*time.Millisecond); err != nil {
				return err
			}

			for _, m := range concerned(run) {
				m.Proxy.Watches(proxy.Watching{})
				m.Proxy.CloseWatches()
			}

			return nil
		}
		cases = append(cases, faultrun.Case{
			Name:   "events of 2.5 s are lost to " + name,
			After:  during{faultrun.Begin: set(proxy.Watching{Drop: true}), faultrun.Join: set(proxy.Watching{Drop: true})},
			During: during{faultrun.Join: again, faultrun.Fail: again},
		})
	}
	s.run(t, cases...)
}
