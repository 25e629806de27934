package scenario

import (
	"context"
	"fmt"
	"time"

	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/observe"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/lab/check"
)

// during and afterwards are the numbers of Websites that are created while the assigner is stopped, and after it is back.
const during, afterwards = 50, 20

// outage stops all replicas of the assigner and starts them again.
func (s *Story) outage(ctx context.Context) error {
	assigners := []string{localsystem.Assigner1, localsystem.Assigner2}
	if err := s.system.End(assigners...); err != nil {
		return err
	}

	for _, name := range assigners {
		if p := s.system.Process(name); p.Err() != nil {
			return fault(p, "did not stop gracefully: %w", p.Err())
		}
	}

	made, err := s.createWebsites(ctx, during)
	if err != nil {
		return err
	}

	if made.assigned != 0 {
		return fmt.Errorf("%d objects were assigned in admission although no assigner was running", made.assigned)
	}
	s.ok("without an assigner, %d of %d creates succeeded, unassigned (slowest %s)", during, during, report.Seconds(made.slowest))

	if err := s.awaitInPlace(ctx); err != nil {
		return err
	}
	s.ok("the rebalancer assigned each within %s, and their ConfigMaps followed", report.Seconds(s.longestWait()))

	if err := s.system.Resume(ctx, assigners...); err != nil {
		return err
	}

	if made, err = s.createWebsites(ctx, afterwards); err != nil {
		return err
	}

	if made.assigned != afterwards {
		return fmt.Errorf("with the assigner back, only %d of %d creates were assigned in admission", made.assigned, afterwards)
	}
	s.ok("with the assigner back, %d of %d creates were assigned in admission", afterwards, afterwards)

	return inOrder(ctx, s.awaitInPlace, s.awaitReady)
}

// longestWait returns the longest time that a Website that was created in this step was unassigned.
func (s *Story) longestWait() time.Duration {
	created, longest := map[string]time.Duration{}, time.Duration(0)

	for _, change := range observe.Changes(s.before, s.versions()[s.old:]) {
		switch v := change.After; {
		case v.Kind != check.Website:
		case change.Before.UID == "":
			created[v.UID] = v.At
		case change.Before.Shard == "":
			longest = max(longest, v.At-created[v.UID])
		}
	}

	return longest
}
