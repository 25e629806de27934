package scenario

import (
	"context"
	"fmt"
	"time"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/observe"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/lab/record"
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

	released, err := s.releasedAt(shard.Name, told)
	if err != nil {
		return err
	}
	s.ok("%s finished its work and released its Lease after %s", shard.Name, report.Seconds(released.Sub(told)))

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
		if move.After.Number < dead.Version {
			return fmt.Errorf("an object left before the Lease of %s was taken: %s", shard.Name, move)
		}
	}
	s.ok("all of its %d objects moved: none before the Lease was dead, the last %s after", s.before.At(shard.Name),
		report.Seconds(moved[len(moved)-1].After.At-record.At(dead.At)))

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
// the turn in which the Lease was taken.
func (s *Story) awaitDeath(ctx context.Context, shard string, silent time.Time) (observe.Turn, error) {
	var taken observe.Turn

	if err := s.awaitState(ctx, shard, "dead"); err != nil {
		return taken, err
	}

	at, path, renewed := map[string]time.Time{}, "", time.Time{}

	for _, turn := range s.turns(shard) {
		if turn.Holder == shard && taken.Version == 0 {
			renewed = turn.Renewed
		}

		if turn.At.Before(silent) {
			continue
		}

		if _, known := at[turn.State]; !known {
			path, at[turn.State] = path+" "+turn.State, turn.At
		}

		if turn.Holder != shard && taken.Version == 0 {
			taken = turn
		}
	}
	// Shards and the monitor share one clock here. There is no upper bound: a late taking only shows that the machine is busy.
	switch kept := taken.Renewed.Sub(renewed); {
	case path != " expired uncertain dead" && path != " ready expired uncertain dead":
		return taken, fmt.Errorf("the Lease of %s went through the states%s, not expired, uncertain, dead", shard, path)
	case taken.Holder != v1alpha1.LeaseControllerIdentity:
		return taken, fmt.Errorf("the Lease of %s was taken by %q", shard, taken.Holder)
	case kept < 2*localsystem.LeaseDuration:
		return taken, fmt.Errorf("the Lease of %s was taken %s after its last renewal, which is less than twice its duration, %s",
			shard, report.Seconds(kept), localsystem.LeaseDuration)
	}

	after := func(state string) string { return report.Seconds(at[state].Sub(silent)) }
	s.ok("its Lease (%s) was expired after %s, uncertain after %s, dead after %s", localsystem.LeaseDuration,
		after("expired"), after("uncertain"), after("dead"))

	return taken, nil
}

// releasedAt returns when the shard released its Lease, and checks that the Lease did not expire.
func (s *Story) releasedAt(shard string, told time.Time) (time.Time, error) {
	var released time.Time

	for _, turn := range s.turns(shard) {
		switch {
		case turn.At.Before(told):
		case turn.State == "expired" || turn.State == "uncertain":
			return released, fmt.Errorf("the Lease of %s was %s after the shard received SIGTERM", shard, turn.State)
		case turn.Holder == "" && released.IsZero():
			released = turn.At
		}
	}

	if released.IsZero() {
		return released, fmt.Errorf("%s has not released its Lease", shard)
	}

	return released, nil
}
