package sweep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/faults/faultrun"
	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/proxy"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

type during = map[faultrun.Phase]func(context.Context, *faultrun.Run)

// taken waits until the shard's Lease was taken from it.
func taken(ctx context.Context, run *faultrun.Run, shard string) {
	run.Until(ctx, "the Lease of shard "+shard+" is taken", func() bool {
		return slices.ContainsFunc(run.Newest(), func(v check.Version) bool {
			return v.Kind == check.Lease && v.Name == shard && v.Holder == contract.LeaseControllerIdentity
		})
	})
}

// TestStaleAssigner keeps the caches of the one replica of the assigner that the API server asks as they were, while
// shards join and fail. The other replica, which registers webhooks, and all else go on.
func TestStaleAssigner(t *testing.T) {
	s := theSuite(t)
	hold := func(hold bool) func(context.Context, *faultrun.Run) {
		return func(_ context.Context, run *faultrun.Run) {
			run.Member(faultrun.Assigner).Proxy.Watches(proxy.Watching{Hold: hold})
		}
	}
	s.run(t, faultrun.Case{
		Name: "the replica of the assigner that is asked has stale caches", Replicas: 2,
		After: during{faultrun.Begin: hold(true), faultrun.Join: hold(true)},
		During: during{
			faultrun.Join: func(ctx context.Context, run *faultrun.Run) {
				for i := range 24 {
					run.Create(ctx, fmt.Sprintf("stale-%d", i))
				}

				// The assigner knows no better.
				run.Until(ctx, "a new object that belongs to the new shard was given to another one", func() bool {
					first := map[string]string{}

					for _, v := range run.Versions() {
						if v.Kind != check.Website || v.Shard == "" || !strings.HasPrefix(v.Name, "stale-") {
							continue
						}

						if first[v.UID] == "" {
							first[v.UID] = v.Shard
						}

						if v.Shard == "d" && first[v.UID] != "d" {
							return true
						}
					}

					return false
				})
				hold(false)(ctx, run)
			},
			faultrun.Fail: func(ctx context.Context, run *faultrun.Run) {
				taken(ctx, run, "a")
				run.Create(ctx, "late")
				hold(false)(ctx, run)
			},
		},
	})
}

// kill kills the first replicas of all services, or the second ones, by the suffix of their names.
func kill(suffix string) func(context.Context, *faultrun.Run) {
	return func(_ context.Context, run *faultrun.Run) {
		for _, m := range run.Members(false) {
			if strings.HasSuffix(m.Name, "-2") == (suffix == "-2") {
				must.Do(m.Process().Kill())
			}
		}
	}
}

// TestReplicas runs two replicas of each service, of which one leads. The first ones are killed, then the second ones;
// or they are frozen until the others have taken over, and woken.
func TestReplicas(t *testing.T) {
	s := theSuite(t)
	freeze := func(suffix string) func(context.Context, *faultrun.Run) {
		return func(ctx context.Context, run *faultrun.Run) {
			names := []string{faultrun.LeaseMonitor + suffix, faultrun.Rebalancer + suffix}
			for _, name := range names {
				_ = run.Member(name).Process().Freeze() // one that is gone is frozen enough
			}

			err := must.Attempt(func() { run.AwaitInPlace(ctx) })
			for _, name := range names {
				err = errors.Join(err, run.Member(name).Process().Thaw())
			}

			must.Do(err)
		}
	}
	s.run(t,
		faultrun.Case{
			Name: "leaders are killed", Replicas: 2,
			During: during{faultrun.Join: kill(""), faultrun.Fail: kill("-2")},
		},
		faultrun.Case{
			Name: "leaders are frozen, and woken when others lead", Replicas: 2,
			During: during{faultrun.Join: freeze(""), faultrun.Fail: freeze("-2")},
		},
		faultrun.Case{
			Name:   "all services are killed in each phase",
			During: during{faultrun.Begin: kill(""), faultrun.Join: kill(""), faultrun.Fail: kill("")},
		},
	)
}

// TestDisconnected cuts a shard off from the API server until its Lease is taken: it must not work any more by then,
// has to end, and joins again. Then it cuts the services off while shards join and fail.
func TestDisconnected(t *testing.T) {
	s := theSuite(t)
	cut := func(_ context.Context, run *faultrun.Run) {
		for _, m := range run.Members(false) {
			m.Proxy.Cut()
		}
	}
	restore := func(ctx context.Context, run *faultrun.Run) {
		must.Pause(ctx, 2500*time.Millisecond)

		for _, m := range run.Members(false) {
			m.Proxy.Restore()
		}
	}
	shardCut := faultrun.Case{
		Name: "a shard is cut off", WorkDuration: 100 * time.Millisecond, Phases: []faultrun.Phase{faultrun.Join},
		During: during{faultrun.Join: func(ctx context.Context, run *faultrun.Run) {
			c := run.Member("c")
			c.Proxy.Cut()
			taken(ctx, run, "c")
			must.Hold(!run.AtWork("c"), "I1: the shard is at work, though its Lease was taken")
			run.Expect("c", false)
			run.Until(ctx, "the shard has ended with an error", func() bool {
				first := c.Lives()[0]
				return !first.Ended.IsZero() && first.Err != nil
			})
			run.AwaitInPlace(ctx)
			run.Expect("c", true)
			c.Proxy.Restore()
		}},
	}
	s.run(t, shardCut, faultrun.Case{
		Name:   "all services are cut off for 2.5 s",
		After:  during{faultrun.Begin: cut, faultrun.Join: cut},
		During: during{faultrun.Join: restore, faultrun.Fail: restore},
	})
}

// TestFrozen freezes a shard in the middle of its work (SIGSTOP) until its Lease is taken and its objects have moved,
// and wakes it. It may end the reconciles that it was in, with writes that fail; it must not begin another one, and
// must end.
//
// Whether a worker of the woken process still sends a write depends on where it was frozen: the process ends as soon as
// one of them looks at the Lease. In most rounds, one does. There are more rounds than three only if none did.
func TestFrozen(t *testing.T) {
	s := theSuite(t)

	var (
		rounds []faultrun.Case
		fenced atomic.Int64
	)

	for i := range 8 {
		rounds = append(rounds, faultrun.Case{
			Skip:         func() bool { return i > 2 && fenced.Load() > 0 },
			Name:         fmt.Sprintf("a shard is frozen and woken, %d", i+1),
			WorkDuration: 300 * time.Millisecond, Phases: []faultrun.Phase{faultrun.Join},
			Rings: []faultrun.RingSpec{{Careless: true}},
			After: during{faultrun.Join: func(ctx context.Context, run *faultrun.Run) {
				fenced.Add(int64(freezeAtWork(ctx, run)))
			}},
		})
	}
	s.run(t, rounds...)
	require.Positive(t, fenced.Load(),
		"the fence has refused no write of the woken shards, which write without a look at their Lease")
}

// freezeAtWork returns how many writes of the woken shard the fence refused.
func freezeAtWork(ctx context.Context, run *faultrun.Run) (refused int) {
	const name = "b"

	b := run.Member(name)
	for _, v := range run.Newest() {
		if v.Kind == check.Website && !v.Deleted && v.Shard == name {
			run.Edit(ctx, v.Name)
		}
	}

	run.Until(ctx, "shard b is at work", func() bool { return run.AtWork(name) })

	before := 0

	frozenUntil(run, b, func() {
		taken(ctx, run, name)
		run.AwaitInPlace(ctx)

		before = len(b.Proxy.Done())
	})
	awaitEnd(b) // it first writes what it was working on

	since := b.Proxy.Done()[before:]
	staleWrites(since)
	run.Start(b)

	return fencedWrites(since)
}

// frozenUntil freezes a shard while do runs, by whose end the shard has lost its Lease, and wakes it.
func frozenUntil(run *faultrun.Run, m *faultrun.Member, do func()) {
	must.Do(m.Process().Freeze())

	from, pid := record.Now(), m.Process().PID()
	m.Process().MayEnd()
	run.Expect(m.Name, false)

	err := errors.Join(must.Attempt(do), m.Process().Thaw())
	run.Froze(check.Frozen{PID: pid, From: from, Until: record.Now()})
	must.Do(err)
}

// awaitEnd waits until a process has ended by itself.
func awaitEnd(m *faultrun.Member) {
	const soon = 15 * time.Second // leader election tries to renew the Lease until the renew deadline

	timer := time.NewTimer(soon)
	defer timer.Stop()

	select {
	case <-m.Process().Exited():
	case <-timer.C:
		must.Do(errors.Join(fmt.Errorf("I1: shard %s still runs %s after it was woken without its Lease", m.Name, soon),
			m.Process().Destroy()))
	}

	must.Hold(m.Process().Err() != nil, "shard %s has lost its Lease and ended with exit code 0", m.Name)
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

// staleWrites demands that no write of a woken process got through.
func staleWrites(done []proxy.Done) {
	for _, d := range done {
		must.Hold(d.Status >= http.StatusBadRequest, "I1: a write of a process that had lost its Lease got through: %s", d)
	}
}

// userPause is the time between two requests of users.
const userPause = 50 * time.Millisecond

// moveFleets loses each shard in turn, and has it come back, while there is work on all Fleets: shards stop, die, and
// stop again. It returns how many Fleets have moved.
func moveFleets(ctx context.Context, run *faultrun.Run, rounds int) int {
	touched := 0
	must.Meanwhile(ctx, userPause, func(ctx context.Context) {
		for i := range rounds {
			shards := run.Members(true)
			shard := shards[i%len(shards)]
			run.Expect(shard.Name, false)

			if i%3 == 1 {
				must.Do(shard.Process().Destroy())
			} else {
				must.Do(shard.Process().Stop(soon))
			}

			run.AwaitInPlace(ctx)
			run.Start(shard)
			run.AwaitInPlace(ctx)
		}
	}, func(ctx context.Context) {
		run.TouchFleet(ctx, touched)
		touched++
	})

	return check.Moves(run.Versions())
}

// TestFleets moves owners whose controller counts their children in its cache and makes, with generated names, those
// that it misses. None is made twice (I9). FAULTS=all moves a thousand.
func TestFleets(t *testing.T) {
	s := theSuite(t)

	rounds, fleets, least := 3, 20, 20
	if os.Getenv(variable) == "all" {
		rounds, fleets, least = 24, 100, 1000
	}
	s.run(t, faultrun.Case{
		Name:  fmt.Sprintf("%d Fleets while shards go and come back", fleets),
		Rings: []faultrun.RingSpec{{Fleets: fleets}}, WorkDuration: time.Millisecond,
		Phases: []faultrun.Phase{faultrun.Join},
		After: during{faultrun.Join: func(ctx context.Context, run *faultrun.Run) {
			moves := moveFleets(ctx, run, rounds)
			must.Hold(moves >= least, "there were %d moves of Fleets, and should be %d", moves, least)
		}},
	})
}

// TestFleetsOfPlainShards moves them between shards that use no library of ours, and have no barrier. The order of the
// moves, and the pause before an owner comes, leave no Ship in excess, although they cannot guarantee it.
func TestFleetsOfPlainShards(t *testing.T) {
	s := theSuite(t)
	if os.Getenv(variable) != "all" {
		t.Skip("depends on how far caches lag: FAULTS=all runs it")
	}
	s.run(t, faultrun.Case{
		Name: "50 Fleets while plain shards go and come back", Rings: []faultrun.RingSpec{{Fleets: 50, Plain: true}},
		WorkDuration: time.Millisecond, Phases: []faultrun.Phase{faultrun.Join}, Broken: "I1",
		After: during{faultrun.Join: func(ctx context.Context, run *faultrun.Run) {
			s.note("%d moves of Fleets between plain shards", moveFleets(ctx, run, 12))
		}},
	})
}

// TestKubelet has the kubelet, or others, report what becomes of the Pods of shards.
func TestKubelet(t *testing.T) {
	s := theSuite(t)
	rings := []faultrun.RingSpec{{Pods: true}}
	s.run(t,
		faultrun.Case{
			Name: "the kubelet reports that the Pod of a shard has ended, and another Pod gets its name", Rings: rings,
			During: during{faultrun.Fail: func(ctx context.Context, run *faultrun.Run) {
				run.Report(ctx, run.Member("a"), corev1.PodFailed, "PodFailed")
				taken(ctx, run, "a")
				run.Until(ctx, "the lease monitor says why", func() bool { return run.HasEvent(ctx, "ShardEnded") })
			}},
			After: during{faultrun.Fail: func(ctx context.Context, run *faultrun.Run) {
				a := run.Member("a")
				run.DeletePod(ctx, a)
				run.Replace(ctx, a)
				run.AwaitInPlace(ctx)
			}},
		},
		faultrun.Case{
			Name: "Pods are deleted by force, or declared failed, while their shards work", Rings: rings,
			Phases: []faultrun.Phase{faultrun.Join},
			After: during{faultrun.Join: func(ctx context.Context, run *faultrun.Run) {
				b, c := run.Member("b"), run.Member("c")
				run.Report(ctx, c, corev1.PodFailed, "ContainersNotReady")
				run.Report(ctx, b, corev1.PodRunning, "ContainersNotReady")
				run.DeletePod(ctx, b)
				run.Expect("b", false)
				b.Process().MayEnd() // nobody accepts its token any more
				taken(ctx, run, "b")
				run.AwaitInPlace(ctx)
				must.Do(b.Process().Destroy())
				run.Replace(ctx, b)
				run.AwaitInPlace(ctx)

				ended := len(c.Lives()) - 1
				must.Hold(ended == 0, "shard c has ended %d times, though the kubelet has reported no end of its Pod", ended)
				must.Hold(!run.HasEvent(ctx, "ShardEnded"), "the kubelet has reported the end of no Pod, but an event says so")
			}},
		})
}

// updates is how many rolling updates of one Pod are played.
const updates = 20

// unmoved demands that no label of an object changes while do runs, other than those of new objects.
func unmoved(run *faultrun.Run, do func()) {
	from := record.Now()

	do()

	cost := continuity.Of(run.Versions(), from, record.Now())
	must.Hold(cost.Labels == 0, "labels have changed: %v", cost)
}

// TestSlots has Pods of a ring with three slots come and go.
func TestSlots(t *testing.T) {
	s := theSuite(t)
	rings, reported := []faultrun.RingSpec{{Slots: 3}}, []faultrun.RingSpec{{Slots: 3, Pods: true}}
	// Phase Join leaves d as a standby.
	afterJoin := func(do func(context.Context, *faultrun.Run)) during {
		return during{faultrun.Join: func(ctx context.Context, run *faultrun.Run) {
			run.AwaitStandby(ctx, run.Member("d"))
			do(ctx, run)
			run.AwaitInPlace(ctx)
		}}
	}
	onlyJoin := []faultrun.Phase{faultrun.Join}

	s.run(t,
		faultrun.Case{Name: "a Pod crashes while another one waits, and then one stops", Rings: rings},
		faultrun.Case{
			Name: "twenty rolling updates under load", Rings: rings, Phases: onlyJoin,
			After: afterJoin(func(ctx context.Context, run *faultrun.Run) {
				from := record.Now()
				unmoved(run, func() { manyUpdates(ctx, run) })
				s.note("%d rolling updates of one Pod with slots: %v; %d writes refused by the fence",
					updates, continuity.Of(run.Versions(), from, record.Now()), refused(run))
			}),
		},
		faultrun.Case{
			Name: "the kubelet reports the end of a Pod while another one waits", Rings: reported, Phases: onlyJoin,
			After: afterJoin(func(ctx context.Context, run *faultrun.Run) {
				unmoved(run, func() {
					a := run.Member("a")
					run.Expect("a", false)
					must.Do(a.Process().Destroy())
					run.Report(ctx, a, corev1.PodFailed, "PodFailed")
					run.AwaitSlot(ctx, run.Member("d"))
				})
			}),
		},
		faultrun.Case{
			Name: "a Pod is frozen until another one has its slot, and wakes up", Rings: rings, Phases: onlyJoin,
			After: afterJoin(func(ctx context.Context, run *faultrun.Run) {
				unmoved(run, func() {
					a := run.Member("a")
					frozenUntil(run, a, func() { run.AwaitSlot(ctx, run.Member("d")) })
					awaitEnd(a)
					run.Edit(ctx, "site-0")
				})
			}),
		},
		faultrun.Case{
			Name: "a slot's Lease is deleted while its Pod works", Rings: rings, Phases: onlyJoin,
			After: afterJoin(func(ctx context.Context, run *faultrun.Run) {
				run.DeleteLease(ctx, contract.SlotName(faultrun.Ring, 1))
			}),
		},
		faultrun.Case{
			Name: "the Pod that waits is killed, and a Pod that stops finds nobody to take its slot", Rings: rings,
			Phases: onlyJoin,
			After: afterJoin(func(_ context.Context, run *faultrun.Run) {
				must.Do(run.Member("d").Process().Destroy())
				run.Expect("d", false)
				run.Expect("a", false)
				must.Do(run.Member("a").Process().Stop(20 * time.Second))
			}),
		},
	)
}

// refused returns how many writes of shards were forbidden.
func refused(run *faultrun.Run) int {
	count := 0

	for _, m := range run.Members(true) {
		count += fencedWrites(m.Proxy.Done())
	}

	return count
}

// manyUpdates replaces one Pod after the other by the one that was replaced before, while Websites are changed.
func manyUpdates(ctx context.Context, run *faultrun.Run) {
	names := []string{"a", "b", "c", "d"}
	must.Do(run.Member("d").Process().Stop(20 * time.Second))

	edits := 0
	must.Meanwhile(ctx, userPause, func(ctx context.Context) {
		for i := range updates {
			run.Update(ctx, run.Member(names[i%len(names)]), run.Member(names[(i+3)%len(names)]))
		}
	}, func(ctx context.Context) {
		run.Edit(ctx, fmt.Sprintf("site-%d", 2+edits%4))
		edits++
	})
}

// TestEverythingAtOnce has two rings that share a resource and a namespace, one of them with Fleets, too; what objects
// control; two replicas of every service, of which first the one and then the other is killed; shards that join, fail
// and leave in both rings; and one ring that is deleted.
func TestEverythingAtOnce(t *testing.T) {
	s := theSuite(t)
	agree := func(ctx context.Context, run *faultrun.Run) { run.OwnersAgree(ctx) }
	s.run(t, faultrun.Case{
		Name: "two rings, several resources, leaders killed", Replicas: 2, Query: true,
		Rings: []faultrun.RingSpec{
			{Name: "first", Namespaces: []string{"only-first", "both"}, Shards: []string{"a", "b", "c", "d"}},
			{Name: "second", Namespaces: []string{"both", "only-second"}, Shards: []string{"e", "f", "g", "h"}, Fleets: 4},
		},
		During: during{faultrun.Join: kill(""), faultrun.Fail: kill("-2")},
		After: during{faultrun.Begin: agree, faultrun.Join: agree,
			faultrun.Fail: func(ctx context.Context, run *faultrun.Run) {
				agree(ctx, run)

				labelled := map[string]int{}

				for _, v := range run.Newest() {
					if !v.Deleted && v.Shard != "" {
						labelled[v.UID]++
					}
				}
				must.Hold(slices.Contains(slices.Collect(maps.Values(labelled)), 2), "no object belongs to both rings")
			}, faultrun.Delete: agree},
	})
}
