package scenario

import (
	"context"
	"fmt"
	"time"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/observe"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// kill kills a shard.
func (s *Story) kill(ctx context.Context) error {
	shard := s.running()[0]

	shard.lost = killed
	if err := shard.Kill(); err != nil {
		return err
	}
	s.console.Note("%s was killed without releasing its Lease of %s", shard.Name, localsystem.LeaseDuration)

	if err := s.awaitReplaced(ctx, shard, shard.EndedAt()); err != nil {
		return err
	}
	s.ok("none of the %d objects of other shards changed", len(s.before)-s.before.At(shard.Name))

	return s.awaitReady(ctx)
}

// leave stops a shard with SIGTERM.
func (s *Story) leave(ctx context.Context) error {
	shard, told := s.running()[0], time.Now()

	shard.lost = stopped
	if err := shard.Terminate(); err != nil {
		return err
	}

	if err := s.awaitInPlace(ctx); err != nil {
		return err
	}

	if err := s.awaitExit(ctx, shard); err != nil {
		return err
	}

	if err := shard.Err(); err != nil {
		return fault(shard.Process, "did not stop gracefully: %w", err)
	}

	moved, err := s.onlyMoved(shard.Name)
	if err != nil {
		return err
	}

	released, err := s.released(shard.Name, told)
	if err != nil {
		return err
	}
	s.ok("%s finished its work and released its Lease after %s", shard.Name, report.Seconds(released))

	after := func(move observe.Change) string { return report.Seconds(move.After.At - record.At(told)) }
	s.ok("its %d objects moved %s to %s after the signal; no other object moved", s.before.At(shard.Name),
		after(moved[0]), after(moved[len(moved)-1]))

	return s.awaitReady(ctx)
}

// awaitReplaced waits until the Lease of a shard that has been silent since the given time was taken, and other shards have its objects. It
// checks that no object moved before, and that no object of another shard moved.
func (s *Story) awaitReplaced(ctx context.Context, shard *shard, silent time.Time) error {
	dead, err := s.awaitDeath(ctx, shard.Name, silent)
	if err != nil {
		return err
	}

	if err := s.awaitInPlace(ctx); err != nil {
		return err
	}

	moved, err := s.onlyMoved(shard.Name)
	if err != nil {
		return err
	}

	for _, move := range moved {
		if move.After.Number < dead.Number {
			return fmt.Errorf("an object left before the Lease of %s was taken: %s", shard.Name, move)
		}
	}
	s.ok("all of its %d objects moved: none before the Lease was dead, the last %s after", s.before.At(shard.Name),
		report.Seconds(moved[len(moved)-1].After.At-dead.At))

	return nil
}

// onlyMoved checks that since the step began, all objects of the lost shard have moved, and the labels of no other object have changed. It
// returns the moves in the order in which they were seen; there is at least one.
func (s *Story) onlyMoved(lost string) ([]observe.Change, error) {
	var moved, others []observe.Change

	for _, change := range observe.Changes(s.before, s.versions()[s.old:]) {
		switch {
		case change.Before.Shard == lost && change.Moved():
			moved = append(moved, change)
		case change.Before.Shard != lost && change.Before.Shard != "":
			others = append(others, change)
		}
	}

	has := s.before.At(lost)
	if n := len(observe.Moves(s.before, s.objects())); n != has || n == 0 {
		return nil, fmt.Errorf("%d objects moved, but %s had %d", n, lost, has)
	}

	return moved, wrong("objects moved for no reason", others)
}

// awaitDeath waits until the Lease of a shard that has been silent since the given time is dead, checks its states on the way, and returns
// the version in which the Lease was taken.
func (s *Story) awaitDeath(ctx context.Context, shard string, silent time.Time) (check.Version, error) {
	var taken check.Version

	if err := s.awaitState(ctx, shard, "dead"); err != nil {
		return taken, err
	}

	at, path, renewed := map[string]time.Duration{}, "", time.Time{}

	for _, v := range s.lease(shard) {
		if v.Holder == shard && taken.Number == 0 {
			renewed = v.Renewed
		}

		if v.At < record.At(silent) {
			continue
		}

		if _, known := at[v.State]; !known {
			path, at[v.State] = path+" "+v.State, v.At-record.At(silent)
		}

		if v.Holder != shard && taken.Number == 0 {
			taken = v
		}
	}
	// Shards and the monitor share one clock here. There is no upper bound: a late taking only shows that the machine is busy.
	switch kept := taken.Renewed.Sub(renewed); {
	case path != " expired uncertain dead" && path != " ready expired uncertain dead":
		return taken, fmt.Errorf("the Lease of %s went through the states%s, not expired, uncertain, dead", shard, path)
	case taken.Holder != contract.LeaseControllerIdentity:
		return taken, fmt.Errorf("the Lease of %s was taken by %q", shard, taken.Holder)
	case kept < 2*localsystem.LeaseDuration:
		return taken, fmt.Errorf("the Lease of %s was taken %s after its last renewal, which is less than twice its duration, %s",
			shard, report.Seconds(kept), localsystem.LeaseDuration)
	}

	s.ok("its Lease (%s) was expired after %s, uncertain after %s, dead after %s", localsystem.LeaseDuration,
		report.Seconds(at["expired"]), report.Seconds(at["uncertain"]), report.Seconds(at["dead"]))

	return taken, nil
}

// released returns how long after a point in time the shard released its Lease, and checks that the Lease did not expire.
func (s *Story) released(shard string, told time.Time) (time.Duration, error) {
	for _, v := range s.lease(shard) {
		switch {
		case v.At < record.At(told):
		case v.State == "expired" || v.State == "uncertain":
			return 0, fmt.Errorf("the Lease of %s was %s after the shard received SIGTERM", shard, v.State)
		case v.Holder == "":
			return v.At - record.At(told), nil
		}
	}

	return 0, fmt.Errorf("%s has not released its Lease", shard)
}
