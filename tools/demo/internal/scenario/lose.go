package scenario

import (
	"context"
	"fmt"
	"time"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/observe"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/lab/services"
)

// kill kills a shard.
func (s *Story) kill(ctx context.Context) error {
	before, err := s.everything()
	if err != nil {
		return err
	}

	mark := s.objects.Mark()

	shard := s.victim(killed)
	if err := shard.Kill(); err != nil {
		return err
	}
	s.console.Note("%s was killed without releasing its Lease of %s", shard.Name, localsystem.LeaseDuration)

	if err := s.replaced(ctx, loss{shard.Name, shard.EndedAt(), before, mark}); err != nil {
		return err
	}
	s.ok("none of the %d objects of other shards changed", len(before)-len(before.At(shard.Name)))

	return s.awaitReady(ctx)
}

// loss describes a shard that stopped renewing its Lease: when, and the objects before.
type loss struct {
	shard  string
	at     time.Time
	before observe.Snapshot
	mark   int
}

// replaced waits until the Lease of a lost shard was taken and other shards have its objects. It checks that no object moved before, and
// that no object of another shard moved.
func (s *Story) replaced(ctx context.Context, l loss) error {
	dead, err := s.followDeath(ctx, l.shard, l.at)
	if err != nil {
		return err
	}

	if err := s.awaitInPlace(ctx); err != nil {
		return err
	}

	mine, err := s.onlyMoved(l.before, l.mark, l.shard)
	if err != nil {
		return err
	}

	for _, change := range s.objects.Since(l.mark) {
		if change.Moved() && change.Version < dead.Version {
			return fmt.Errorf("%s left %s before its Lease was taken", change.Key, l.shard)
		}
	}

	_, last := s.movedBetween(l.mark)
	s.ok("all of its %d objects moved: none before the Lease was dead, the last %s after", mine, report.Seconds(last.Sub(dead.At)))

	return nil
}

// onlyMoved checks that since the mark, all objects of the lost shard have moved and no other object has changed. It returns the number of
// moved objects.
func (s *Story) onlyMoved(before observe.Snapshot, mark int, lost string) (int, error) {
	after, err := s.everything()
	if err != nil {
		return 0, err
	}

	moves := observe.Compare(before, after, func(from, _ string) bool { return from == lost })

	mine := len(before.At(lost))
	if moves.Moved != mine {
		return 0, fmt.Errorf("%d objects moved, but %s had %d", moves.Moved, lost, mine)
	}

	return mine, wrong("objects moved for no reason", append(moves.Wrong, s.disturbed(mark, lost)...))
}

// disturbed returns the label changes since the mark of objects that had another shard than the lost one.
func (s *Story) disturbed(mark int, lost string) []string {
	var found []string

	for _, c := range s.objects.Since(mark) {
		if c.Before.Shard != lost && c.Before.Shard != "" && c.Before != c.After {
			found = append(found, fmt.Sprintf("%s changed from %+v to %+v", c.Key, c.Before, c.After))
		}
	}

	return found
}

// followDeath waits until the Lease of a shard that has been silent since the given time is dead, checks its states on the way, and returns
// the turn in which the Lease was taken.
func (s *Story) followDeath(ctx context.Context, shard string, silent time.Time) (observe.Turn, error) {
	if err := s.awaitState(ctx, shard, "dead"); err != nil {
		return observe.Turn{}, err
	}

	turns, err := s.leases.Of(shard)
	if err != nil {
		return observe.Turn{}, err
	}

	at := map[string]time.Time{}

	var (
		path    []string
		taken   observe.Turn
		renewed time.Time
	)

	for _, turn := range turns {
		if turn.Holder == shard && taken.Version == 0 {
			renewed = turn.Renewed
		}

		if turn.At.Before(silent) {
			continue
		}

		if _, known := at[turn.State]; !known {
			path, at[turn.State] = append(path, turn.State), turn.At
		}

		if turn.Holder != shard && taken.Version == 0 {
			taken = turn
		}
	}
	// Shards and the monitor share one clock here. There is no upper bound: a late taking only shows that the machine is busy.
	switch kept := taken.Renewed.Sub(renewed); {
	case fmt.Sprint(path) != "[expired uncertain dead]" && fmt.Sprint(path) != "[ready expired uncertain dead]":
		return taken, fmt.Errorf("the Lease of %s went through the states %v, not expired, uncertain, dead", shard, path)
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

// leave stops a shard with SIGTERM.
func (s *Story) leave(ctx context.Context) error {
	before, err := s.everything()
	if err != nil {
		return err
	}

	mark := s.objects.Mark()
	shard := s.victim(stopped)
	told := time.Now()

	if err := shard.Terminate(); err != nil {
		return err
	}

	if err := s.awaitInPlace(ctx); err != nil {
		return err
	}

	select {
	case <-shard.Exited():
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	if err := shard.Err(); err != nil {
		return &services.FaultError{Process: shard.Name, Err: fmt.Errorf("%s did not stop gracefully: %w", shard.Name, err)}
	}

	mine, err := s.onlyMoved(before, mark, shard.Name)
	if err != nil {
		return err
	}

	released, err := s.releasedAt(shard.Name, told)
	if err != nil {
		return err
	}
	s.ok("%s finished its work and released its Lease after %s", shard.Name, report.Seconds(released.Sub(told)))
	first, last := s.movedBetween(mark)
	s.ok("its %d objects moved %s to %s after the signal; no other object moved", mine,
		report.Seconds(first.Sub(told)), report.Seconds(last.Sub(told)))

	return s.awaitReady(ctx)
}

// releasedAt returns when the shard released its Lease, and checks that the Lease did not expire.
func (s *Story) releasedAt(shard string, told time.Time) (time.Time, error) {
	turns, err := s.leases.Of(shard)
	if err != nil {
		return time.Time{}, err
	}

	var released time.Time

	for _, turn := range turns {
		switch {
		case turn.At.Before(told):
		case turn.State == "expired" || turn.State == "uncertain":
			return time.Time{}, fmt.Errorf("the Lease of %s was %s after the shard received SIGTERM", shard, turn.State)
		case turn.Holder == "" && released.IsZero():
			released = turn.At
		}
	}

	if released.IsZero() {
		return time.Time{}, fmt.Errorf("%s has not released its Lease", shard)
	}

	return released, nil
}

// movedBetween returns when the first and the last object moved since the mark.
func (s *Story) movedBetween(mark int) (first, last time.Time) {
	for _, change := range s.objects.Since(mark) {
		if !change.Moved() {
			continue
		}

		if first.IsZero() {
			first = change.At
		}

		last = change.At
	}

	return first, last
}
