package sweep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/faults/faultrun"
	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// updates is how many rolling updates of one Pod are played.
const updates = 20

// unmoved calls the function, and returns an error if a label of an object has changed meanwhile, other than those of new objects.
func unmoved(run *faultrun.Run, do func() error) error {
	before, err := run.Versions()
	if err := errors.Join(err, do()); err != nil {
		return err
	}

	after, err := run.Versions()
	newest := map[string]check.Version{}

	var changed []error

	for i, v := range after {
		was, known := newest[v.UID]
		newest[v.UID] = v

		if i >= len(before) && known && v.Kind != check.Lease && was.Shard != "" && (was.Shard != v.Shard || was.Draining != v.Draining) {
			changed = append(changed, fmt.Errorf("a label has changed: %v; before: %v", v, was))
		}
	}

	return errors.Join(append(changed, err)...)
}

// TestSlots has Pods of a ring with three slots come and go.
func TestSlots(t *testing.T) {
	s := theSuite(t)
	rings := []faultrun.RingSpec{{
		Name: faultrun.Ring, Namespaces: []string{faultrun.Namespace}, Shards: []string{"a", "b", "c", "d"}, Slots: 3,
	}}
	reported := slices.Clone(rings)
	reported[0].Pods = true
	// Phase Join leaves d as a standby.
	afterJoin := func(do func(context.Context, *faultrun.Run) error) during {
		return during{faultrun.Join: func(ctx context.Context, run *faultrun.Run) error {
			if err := run.AwaitStandby(ctx, run.Member("d")); err != nil {
				return err
			}

			return errors.Join(do(ctx, run), run.AwaitInPlace(ctx))
		}}
	}
	onlyJoin := []faultrun.Phase{faultrun.Join}

	s.run(t,
		faultrun.Case{Name: "a Pod crashes while another one waits, and then one stops", Rings: rings},
		faultrun.Case{
			Name: "twenty rolling updates under load", Rings: rings, Phases: onlyJoin,
			After: afterJoin(func(ctx context.Context, run *faultrun.Run) error {
				from := record.Now()
				err := unmoved(run, func() error { return manyUpdates(ctx, run) })

				versions, incomplete := run.Versions()
				s.note("%d rolling updates of one Pod with slots: %v; %d writes refused by the fence",
					updates, continuity.Of(versions, from, record.Now()), refused(run))

				return errors.Join(err, incomplete)
			}),
		},
		faultrun.Case{
			Name: "the kubelet reports the end of a Pod while another one waits", Rings: reported, Phases: onlyJoin,
			After: afterJoin(func(ctx context.Context, run *faultrun.Run) error {
				return unmoved(run, func() error {
					a := run.Member("a")
					run.Expect("a", false)

					return errors.Join(a.Process().Destroy(), run.Report(ctx, a, corev1.PodFailed, "PodFailed"), run.AwaitSlot(ctx, run.Member("d")))
				})
			}),
		},
		faultrun.Case{
			Name: "a Pod is frozen until another one has its slot, and wakes up", Rings: rings, Phases: onlyJoin,
			After: afterJoin(func(ctx context.Context, run *faultrun.Run) error {
				return unmoved(run, func() error {
					a := run.Member("a")
					if err := a.Process().Freeze(); err != nil {
						return err
					}

					from, pid := record.Now(), a.Process().PID()
					a.Process().MayEnd() // its slot will be gone
					run.Expect("a", false)
					err := errors.Join(run.AwaitSlot(ctx, run.Member("d")), a.Process().Thaw())
					run.Froze(check.Frozen{PID: pid, From: from, Until: record.Now()})

					return errors.Join(err, awaitEnd(a), run.Edit(ctx, "site-0"))
				})
			}),
		},
		faultrun.Case{
			Name: "a slot's Lease is deleted while its Pod works", Rings: rings, Phases: onlyJoin,
			After: afterJoin(func(ctx context.Context, run *faultrun.Run) error {
				return run.DeleteLease(ctx, contract.SlotName(faultrun.Ring, 1))
			}),
		},
		faultrun.Case{
			Name: "the Pod that waits is killed, and a Pod that stops finds nobody to take its slot", Rings: rings, Phases: onlyJoin,
			After: afterJoin(func(ctx context.Context, run *faultrun.Run) error {
				err := run.Member("d").Process().Destroy()
				run.Expect("d", false)
				run.Expect("a", false)

				return errors.Join(err, run.Member("a").Process().Stop(20*time.Second))
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
func manyUpdates(ctx context.Context, run *faultrun.Run) error {
	names := []string{"a", "b", "c", "d"}

	if err := run.Member("d").Process().Stop(20 * time.Second); err != nil {
		return err
	}

	editing, stop := context.WithCancel(ctx)
	edited := make(chan error, 1)

	go func() {
		var err error

		for i := 0; editing.Err() == nil && err == nil; i++ {
			err = errors.Join(run.Edit(ctx, fmt.Sprintf("site-%d", 2+i%4)), wait(ctx, 50*time.Millisecond))
		}
		edited <- err
	}()

	var err error

	for i := range updates {
		old, next := run.Member(names[i%len(names)]), run.Member(names[(i+3)%len(names)])
		if err = run.Update(ctx, old, next); err != nil {
			err = fmt.Errorf("update %d, from Pod %s to %s: %w", i+1, old.Name, next.Name, err)

			break
		}
	}

	stop()

	return errors.Join(err, <-edited)
}
