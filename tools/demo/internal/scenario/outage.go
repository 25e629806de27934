package scenario

import (
	"context"
	"fmt"
	"time"

	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/observe"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
)

// during and afterwards are the numbers of Websites that are created while the assigner is stopped, and after it is back.
const during, afterwards = 50, 20

// outage stops all replicas of the assigner and starts them again.
func (s *Story) outage(ctx context.Context) error {
	mark := s.objects.Mark()
	if err := s.system.StopServices(localsystem.Assigner1, localsystem.Assigner2); err != nil {
		return err
	}

	made, err := s.createWebsites(ctx, during)
	if err != nil {
		return err
	}

	if n := made.inAdmission(s.available()); n != 0 {
		return fmt.Errorf("%d objects were assigned in admission although no assigner was running", n)
	}
	s.ok("without an assigner, %d of %d creates succeeded, unassigned (slowest %s)", during, during, report.Seconds(made.slowest))

	if err := s.awaitInPlace(ctx); err != nil {
		return err
	}
	s.ok("the rebalancer assigned each within %s, and their ConfigMaps followed", report.Seconds(s.longestWait(mark, websites)))

	if err := s.system.StartServices(ctx, localsystem.Assigner1, localsystem.Assigner2); err != nil {
		return err
	}

	made, err = s.createWebsites(ctx, afterwards)
	if err != nil {
		return err
	}

	if n := made.inAdmission(s.available()); n != afterwards {
		return fmt.Errorf("with the assigner back, only %d of %d creates were assigned in admission", n, afterwards)
	}
	s.ok("with the assigner back, %d of %d creates were assigned in admission", afterwards, afterwards)

	if err := s.awaitInPlace(ctx); err != nil {
		return err
	}

	return s.awaitReady(ctx)
}

// longestWait returns the longest time that an object created since the mark was unassigned.
func (s *Story) longestWait(mark int, resource string) time.Duration {
	created, longest := map[observe.Key]time.Time{}, time.Duration(0)

	for _, c := range s.objects.Since(mark) {
		if c.Key.Resource != resource {
			continue
		}

		if c.After.Shard == "" {
			created[c.Key] = c.At
		} else if at, waited := created[c.Key]; waited {
			longest = max(longest, c.At.Sub(at))
			delete(created, c.Key)
		}
	}

	return longest
}
