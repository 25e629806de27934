package scenario

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/observe"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/testkit/check"
)

// during and afterwards are the numbers of Websites that are created while the assigner is stopped, and after it is back.
const during, afterwards = 50, 20

// outage stops all replicas of the assigner and starts them again.
func (s *Story) outage(ctx context.Context) error {
	assigners := []string{localsystem.Assigner1, localsystem.Assigner2}
	if err := s.end(assigners...); err != nil {
		return err
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
	s.ok("the rebalancer assigned each within %s, and their ConfigMaps followed", report.Seconds(slices.Max(append(s.waits(s.old), 0))))

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

// waits returns the times, sorted, that Websites were without a shard after they were created, from that version on.
func (s *Story) waits(from int) []time.Duration {
	created := map[string]time.Duration{}

	var waits []time.Duration

	for _, change := range observe.Changes(s.before, s.versions()[from:]) {
		switch v := change.After; {
		case v.Kind != check.Website:
		case change.Before.UID == "":
			created[v.UID] = v.At
		case change.Before.Shard == "":
			waits = append(waits, v.At-created[v.UID])
		}
	}

	slices.Sort(waits)

	return waits
}
