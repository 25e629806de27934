package sweep

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/faults/faultrun"
	"github.com/clusterring/clusterring/tools/faults/proxy"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// taken waits until the shard's Lease was taken from it.
func taken(ctx context.Context, run *faultrun.Run, shard string) error {
	return run.Await(ctx, "the Lease of shard "+shard+" is taken", func() []string {
		for _, v := range run.Newest() {
			if v.Kind == check.Lease && v.Name == shard && v.Holder == contract.LeaseControllerIdentity {
				return nil
			}
		}

		return []string{"it is not"}
	})
}

// TestBusy has objects move in the middle of work on them and on what they control.
func TestBusy(t *testing.T) {
	s := theSuite(t)

	const work = 300 * time.Millisecond
	s.run(t, faultrun.Case{
		Name: "objects move while they are worked on", WorkDuration: work,
		During: during{faultrun.Join: func(ctx context.Context, run *faultrun.Run) error {
			return run.Await(ctx, "objects are given up", func() []string {
				sites := slices.DeleteFunc(run.Newest(), func(v check.Version) bool { return v.Kind != check.Website || v.Deleted })

				asked := slices.ContainsFunc(sites, func(v check.Version) bool { return v.Draining })
				if !asked { // a change would keep an object from being given up
					for _, change := range []func(context.Context, string) error{run.Edit, run.Touch} {
						for _, v := range sites {
							_ = change(ctx, v.Name) // it may not be there yet
						}

						if err := wait(ctx, work/2); err != nil {
							return []string{err.Error()}
						}
					}
				}

				if len(run.GivenUp()) > 0 {
					return nil
				}

				return []string{"none was"}
			})
		}},
	})
}

// TestStaleAssigner keeps the caches of the one replica of the assigner that the API server asks as they were, while shards
// join and fail. The other replica, which registers webhooks, and all else go on.
func TestStaleAssigner(t *testing.T) {
	s := theSuite(t)
	hold := func(hold bool) func(context.Context, *faultrun.Run) error {
		return func(_ context.Context, run *faultrun.Run) error {
			run.Member(faultrun.Assigner).Proxy.Watches(proxy.Watching{Hold: hold})
			return nil
		}
	}
	s.run(t, faultrun.Case{
		Name: "the replica of the assigner that is asked has stale caches", Replicas: 2,
		After: during{faultrun.Begin: hold(true), faultrun.Join: hold(true)},
		During: during{
			faultrun.Join: func(ctx context.Context, run *faultrun.Run) error {
				var errs []error
				for i := range 24 {
					errs = append(errs, run.Create(ctx, fmt.Sprintf("stale-%d", i)))
				}

				err := errors.Join(append(errs, run.Await(ctx, "a new object that belongs to the new shard was given to another one, for the assigner knows no better", func() []string {
					versions, err := run.Versions()
					first := map[string]string{}

					for _, v := range versions {
						if v.Kind != check.Website || v.Shard == "" || !strings.HasPrefix(v.Name, "stale-") {
							continue
						}

						if first[v.UID] == "" {
							first[v.UID] = v.Shard
						}

						if v.Shard == "d" && first[v.UID] != "d" {
							return nil
						}
					}

					return []string{fmt.Sprintf("none was, but %d were made (%v)", len(first), err)}
				}))...)

				return errors.Join(err, hold(false)(ctx, run))
			},
			faultrun.Fail: func(ctx context.Context, run *faultrun.Run) error {
				return errors.Join(taken(ctx, run, "a"), run.Create(ctx, "late"), hold(false)(ctx, run))
			},
		},
	})
}

// TestReplicas runs two replicas of each service, of which one leads. The first ones are killed, then the second ones;
// or they are frozen until the others have taken over, and woken.
func TestReplicas(t *testing.T) {
	s := theSuite(t)
	of := func(second bool, services ...string) []string {
		if second {
			for i := range services {
				services[i] += "-2"
			}
		}

		return services
	}
	kill := func(second bool) func(context.Context, *faultrun.Run) error {
		return func(_ context.Context, run *faultrun.Run) error {
			var errs []error
			for _, name := range of(second, faultrun.LeaseMonitor, faultrun.Assigner, faultrun.Rebalancer) {
				errs = append(errs, run.Member(name).Process().Kill())
			}

			return errors.Join(errs...)
		}
	}
	killed := faultrun.Case{
		Name: "leaders are killed", Replicas: 2,
		During: during{faultrun.Join: kill(false), faultrun.Fail: kill(true)},
	}
	freeze := func(second bool) func(context.Context, *faultrun.Run) error {
		return func(ctx context.Context, run *faultrun.Run) error {
			names := of(second, faultrun.LeaseMonitor, faultrun.Rebalancer)
			for _, name := range names {
				_ = run.Member(name).Process().Freeze() // one that is gone is frozen enough
			}

			err := run.AwaitInPlace(ctx)
			for _, name := range names {
				err = errors.Join(err, run.Member(name).Process().Thaw())
			}

			return err
		}
	}
	frozen := faultrun.Case{
		Name: "leaders are frozen, and woken when others lead", Replicas: 2,
		During: during{faultrun.Join: freeze(false), faultrun.Fail: freeze(true)},
	}
	all := func(_ context.Context, run *faultrun.Run) error {
		var errs []error
		for _, m := range run.Members(false) {
			errs = append(errs, m.Process().Kill())
		}

		return errors.Join(errs...)
	}
	s.run(t, killed, frozen, faultrun.Case{
		Name:   "all services are killed in each phase",
		During: during{faultrun.Begin: all, faultrun.Join: all, faultrun.Fail: all},
	})
}

// TestDisconnected cuts a shard off from the API server until its Lease is taken: it must not work any more by then, has to
// end, and joins again.
// Then it cuts the services off while shards join and fail.
func TestDisconnected(t *testing.T) {
	s := theSuite(t)
	cut := func(_ context.Context, run *faultrun.Run) error {
		for _, m := range run.Members(false) {
			m.Proxy.Cut()
		}

		return nil
	}
	restore := func(ctx context.Context, run *faultrun.Run) error {
		err := wait(ctx, 2500*time.Millisecond)

		for _, m := range run.Members(false) {
			m.Proxy.Restore()
		}

		return err
	}
	shardCut := faultrun.Case{
		Name: "a shard is cut off", WorkDuration: 100 * time.Millisecond, Phases: []faultrun.Phase{faultrun.Join},
		During: during{faultrun.Join: func(ctx context.Context, run *faultrun.Run) error {
			c := run.Member("c")
			c.Proxy.Cut()

			if err := taken(ctx, run, "c"); err != nil {
				return err
			}

			if run.AtWork("c") {
				return errors.New("I1: the shard is at work, though its Lease was taken")
			}
			run.Expect("c", false)

			err := run.Await(ctx, "the shard has ended with an error", func() []string {
				if first := c.Lives()[0]; first.Ended.IsZero() || first.Err == nil {
					return []string{"it has not"}
				}

				return nil
			})
			if err := errors.Join(err, run.AwaitInPlace(ctx)); err != nil {
				return err
			}
			run.Expect("c", true)
			c.Proxy.Restore()

			return nil
		}},
	}
	s.run(t, shardCut, faultrun.Case{
		Name:   "all services are cut off for 2.5 s",
		After:  during{faultrun.Begin: cut, faultrun.Join: cut},
		During: during{faultrun.Join: restore, faultrun.Fail: restore},
	})
}

// TestFrozen freezes a shard in the middle of its work (SIGSTOP) until its Lease is taken and its objects have moved, and
// wakes it. It may end the reconciles that it was in, with writes that fail; it must not begin another one, and must end.
//
// Whether a worker of the woken process still sends a write depends on where it was frozen: the process ends as soon as one of them looks at the
// Lease. In most rounds, one does. There are more rounds than three only if none did.
func TestFrozen(t *testing.T) {
	s := theSuite(t)

	var (
		rounds []trial
		fenced atomic.Int64
	)

	for i := range 8 {
		rounds = append(rounds, trial{Skip: func() bool { return i > 2 && fenced.Load() > 0 }, Case: faultrun.Case{
			Name: fmt.Sprintf("a shard is frozen and woken, %d", i+1), WorkDuration: 300 * time.Millisecond, Phases: []faultrun.Phase{faultrun.Join},
			Rings: []faultrun.RingSpec{{
				Name: faultrun.Ring, Namespaces: []string{faultrun.Namespace}, Shards: []string{"a", "b", "c", "d"}, Careless: true,
			}},
			After: during{faultrun.Join: func(ctx context.Context, run *faultrun.Run) error {
				refused, err := freezeAtWork(ctx, run)
				fenced.Add(int64(refused))

				return err
			}},
		}})
	}
	s.try(t, rounds)
	require.Positive(t, fenced.Load(), "the fence has refused no write of the woken shards, which write without a look at their Lease")
}

// freezeAtWork returns how many writes of the woken shard the fence refused.
func freezeAtWork(ctx context.Context, run *faultrun.Run) (refused int, err error) {
	const name = "b"

	b := run.Member(name)
	for _, v := range run.Newest() {
		if v.Kind == check.Website && !v.Deleted && v.Shard == name {
			if err := run.Edit(ctx, v.Name); err != nil {
				return 0, err
			}
		}
	}

	if err := run.Await(ctx, "shard b is at work", func() []string {
		if run.AtWork(name) {
			return nil
		}

		return []string{"it is not"}
	}); err != nil {
		return 0, err
	}

	if err := b.Process().Freeze(); err != nil {
		return 0, err
	}

	from, pid := record.Now(), b.Process().PID()
	b.Process().MayEnd()
	run.Expect(name, false)
	err = errors.Join(taken(ctx, run, name), run.AwaitInPlace(ctx))
	before := len(b.Proxy.Done())
	err = errors.Join(err, b.Process().Thaw())
	run.Froze(check.Frozen{PID: pid, From: from, Until: record.Now()})

	if err != nil {
		return 0, err
	}

	err = awaitEnd(b) // it first writes what it was working on

	since := b.Proxy.Done()[before:]

	return fencedWrites(since), errors.Join(err, staleWrites(since), run.Start(b))
}

// awaitEnd waits until a process has ended by itself.
func awaitEnd(m *faultrun.Member) error {
	const soon = 15 * time.Second // leader election tries to renew the Lease until the renew deadline

	timer := time.NewTimer(soon)
	defer timer.Stop()

	select {
	case <-m.Process().Exited():
	case <-timer.C:
		return errors.Join(fmt.Errorf("I1: shard %s still runs %s after it was woken without its Lease", m.Name, soon),
			m.Process().Destroy())
	}

	lives := m.Lives()
	if last := lives[len(lives)-1]; last.Err == nil {
		return fmt.Errorf("shard %s has lost its Lease and ended with exit code 0", m.Name)
	}

	return nil
}

// fencedWrites returns how many writes of a process were forbidden.
func fencedWrites(done []proxy.Done) (refused int) {
	for _, d := range done {
		if d.Status == http.StatusForbidden {
			refused++
		}
	}

	return refused
}

// staleWrites finds writes of a woken process that got through. Its events may.
func staleWrites(done []proxy.Done) error {
	through := slices.DeleteFunc(done, func(d proxy.Done) bool { return d.Status >= http.StatusBadRequest })

	var texts []string
	for _, d := range through {
		texts = append(texts, d.String())
	}

	if len(texts) > 0 {
		return fmt.Errorf("I1: writes of a process that had lost its Lease got through: %s", strings.Join(texts, ", "))
	}

	return nil
}
