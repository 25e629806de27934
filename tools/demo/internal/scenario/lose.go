package scenario

import (
	"context"
	"fmt"
	"time"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/observe"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/demo/internal/system"
)

// margin is how much later than possible a shard may have been declared dead, and how much earlier than twice its Lease's
// duration after the kill: its last renewal was before that.
const (
	early = 2 * time.Second
	late  = 5 * time.Second
)

// kill ends a shard without a warning.
func (s *Story) kill(ctx context.Context) error {
	before, err := s.everything()
	if err != nil {
		return err
	}
	mark := s.objects.Mark()
	shard := s.victim("killed")
	if err := shard.Kill(); err != nil {
		return err
	}
	killed := shard.EndedAt()
	s.console.Note("%s was killed; nobody has told its Lease, which lasts %s", shard.Name, system.LeaseDuration)

	dead, err := s.followDeath(ctx, shard.Name, killed)
	if err != nil {
		return err
	}
	if err := s.awaitSettled(ctx); err != nil {
		return err
	}
	after, err := s.everything()
	if err != nil {
		return err
	}
	moves := observe.Compare(before, after, func(from, _ string) bool { return from == shard.Name })
	if err := wrong("objects moved that had no reason to", append(moves.Wrong, s.disturbed(mark, shard.Name)...)); err != nil {
		return err
	}
	mine := len(before.At(shard.Name))
	if moves.Moved != mine {
		return fmt.Errorf("%d objects moved, but the killed shard had %d", moves.Moved, mine)
	}
	last := time.Time{}
	for _, change := range s.objects.Since(mark) {
		if change.Moved() && change.Version < dead.Version {
			return fmt.Errorf("%s left %s before its Lease was taken", change.Key, shard.Name)
		}
		last = change.At
	}
	s.ok("all its %d objects moved: none before that, the last %s later", mine, report.Seconds(last.Sub(dead.At)))
	s.ok("none of the %d objects of other shards was touched", len(before)-mine)
	return s.awaitReady(ctx)
}

// disturbed returns changes since the mark of the labels of objects that were at other shards than the lost one.
func (s *Story) disturbed(mark int, lost string) []string {
	var found []string
	for _, c := range s.objects.Since(mark) {
		if c.Before.Shard != lost && c.Before.Shard != "" && c.Before != c.After {
			found = append(found, fmt.Sprintf("%s changed from %+v to %+v", c.Key, c.Before, c.After))
		}
	}
	return found
}

// followDeath waits until the Lease of a killed shard is dead, checks the way there, and returns the turn in which the Lease
// was taken.
func (s *Story) followDeath(ctx context.Context, shard string, killed time.Time) (observe.Turn, error) {
	if err := s.awaitState(ctx, shard, "dead"); err != nil {
		return observe.Turn{}, err
	}
	turns, err := s.leases.Of(shard)
	if err != nil {
		return observe.Turn{}, err
	}
	at := map[string]time.Time{}
	var path []string
	var taken observe.Turn
	for _, turn := range turns {
		if turn.At.Before(killed) {
			continue
		}
		if _, known := at[turn.State]; !known {
			path, at[turn.State] = append(path, turn.State), turn.At
		}
		if turn.Holder != shard && taken.Version == 0 {
			taken = turn
		}
	}
	switch since := taken.At.Sub(killed); {
	case fmt.Sprint(path) != "[expired uncertain dead]" && fmt.Sprint(path) != "[ready expired uncertain dead]":
		return taken, fmt.Errorf("the Lease of %s went through the states %v, not expired, uncertain, dead", shard, path)
	case taken.Holder != v1alpha1.LeaseControllerIdentity:
		return taken, fmt.Errorf("the Lease of %s was taken by %q", shard, taken.Holder)
	case since < 2*system.LeaseDuration-early || since > 2*system.LeaseDuration+late:
		return taken, fmt.Errorf("the Lease of %s was taken %s after the kill, which is not about twice its duration, %s",
			shard, report.Seconds(since), system.LeaseDuration)
	}
	after := func(state string) string { return report.Seconds(at[state].Sub(killed)) }
	s.ok("its Lease (%s) was expired after %s, uncertain after %s, dead after %s", system.LeaseDuration,
		after("expired"), after("uncertain"), after("dead"))
	return taken, nil
}

// leave tells a shard to stop.
func (s *Story) leave(ctx context.Context) error {
	before, err := s.everything()
	if err != nil {
		return err
	}
	mark := s.objects.Mark()
	shard := s.victim("stopped")
	told := time.Now()
	if err := shard.Terminate(); err != nil {
		return err
	}
	if err := s.awaitSettled(ctx); err != nil {
		return err
	}
	settled := time.Since(told)
	select {
	case <-shard.Exited():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := shard.Err(); err != nil {
		return &system.FaultError{Process: shard.Name, Err: fmt.Errorf("%s did not stop in order: %w", shard.Name, err)}
	}
	if settled >= system.LeaseDuration {
		return fmt.Errorf("its objects moved after %s only: somebody has waited for the Lease to expire", report.Seconds(settled))
	}
	after, err := s.everything()
	if err != nil {
		return err
	}
	moves := observe.Compare(before, after, func(from, _ string) bool { return from == shard.Name })
	if err := wrong("objects moved that had no reason to", append(moves.Wrong, s.disturbed(mark, shard.Name)...)); err != nil {
		return err
	}
	if mine := len(before.At(shard.Name)); moves.Moved != mine {
		return fmt.Errorf("%d objects moved, but the shard that left had %d", moves.Moved, mine)
	}
	turns, err := s.leases.Of(shard.Name)
	if err != nil {
		return err
	}
	released := settled
	for _, turn := range turns {
		if turn.Holder != shard.Name && turn.At.After(told) {
			released = turn.At.Sub(told)
			break
		}
	}
	s.ok("%s finished its work and gave its Lease back after %s", shard.Name, report.Seconds(released))
	s.ok("all its %d objects were at other shards after %s; nothing else moved", moves.Moved, report.Seconds(settled))
	return s.awaitReady(ctx)
}
