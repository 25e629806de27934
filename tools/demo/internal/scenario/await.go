package scenario

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	diagnosticsv1alpha1 "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/example/website"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/lab/system"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/history"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

const (
	// patience limits waits that have no bound of their own. patiencePerObject is added for each object, for slow
	// machines.
	patience          = 60 * time.Second
	patiencePerObject = 20 * time.Millisecond
	// idleFor is how long a shard must be idle to count as idle, because events may still be on their way.
	idleFor = time.Second
)

// await waits until nothing is missing. What is missing is shown meanwhile, and is part of the error after a timeout.
func (s *Story) await(ctx context.Context, look func(context.Context) (missing string)) {
	begin, within := time.Now(), patience+time.Duration(s.created)*patiencePerObject

	err := must.Attempt(func() {
		must.Await(ctx, within, func(ctx context.Context) string {
			missing := look(ctx)
			if missing != "" {
				s.console.Progress("waiting: %s (%s)", missing, seconds(begin))
			}

			return missing
		})
	})
	if err != nil {
		s.versions() // an incomplete record is the reason
		must.Do(err)
	}
}

// unless returns what is missing unless a condition holds.
func unless(holds bool, format string, args ...any) string {
	if holds {
		return ""
	}

	return fmt.Sprintf(format, args...)
}

// awaitReady waits until the ring is Ready, all running shards are available, all conditions are true, and the
// rebalancer has seen every object in place for exactly these shards.
func (s *Story) awaitReady(ctx context.Context) {
	s.await(ctx, func(ctx context.Context) string {
		ring, available := s.ring.Stored(ctx), len(s.available())
		if limit := ring.Spec.ActiveShards; limit != nil {
			available = min(available, int(*limit))
		}

		if problems := system.StatusProblems(ring, available); len(problems) > 0 {
			return problems[0]
		}

		answer := must.Get(s.query.GetRing(ctx, &diagnosticsv1alpha1.GetRingRequest{Name: localsystem.Ring}))
		a := ring.Status.Assignment

		return unless(a != nil && a.Fingerprint == answer.GetRing().GetFingerprint(),
			"the rebalancer has not yet seen every object in place")
	})
}

// awaitInPlace waits until each Website and each Fleet has an available shard, and its ConfigMap or Ships have the same
// shard.
func (s *Story) awaitInPlace(ctx context.Context) {
	s.awaitPlaced(ctx, s.created+s.fleets, func(check.Version) bool { return true })
}

// awaitPlaced is awaitInPlace for the given number of Websites and Fleets, and what they control.
func (s *Story) awaitPlaced(ctx context.Context, n int, counts func(check.Version) bool) {
	s.await(ctx, func(context.Context) string {
		versions := slices.DeleteFunc(s.ring.Newest(), func(v check.Version) bool { return !counts(v) })
		missing := n

		for i := range versions {
			versions[i].Complete = true // users may be editing
			if kind := versions[i].Kind; !versions[i].Deleted && (kind == check.Website || kind == check.Fleet) {
				missing--
			}
		}

		if missing > 0 {
			return fmt.Sprintf("%d objects were not yet seen", missing)
		}

		problems := check.Final(check.State{Versions: versions, Available: s.available()})
		if len(problems) > 0 {
			return fmt.Sprintf("%d objects are not in place: %s", len(problems), problems[0].Text)
		}

		return ""
	})
}

// awaitState waits until the Lease of the shard has the state.
func (s *Story) awaitState(ctx context.Context, shard, state string) {
	s.await(ctx, func(context.Context) string {
		versions := s.lease(shard)
		if len(versions) == 0 {
			return shard + " has no Lease"
		}

		is := versions[len(versions)-1].State

		return unless(is == state, "the Lease of %s is %s, not %s", shard, is, state)
	})
}

// awaitGone waits until an object does not exist. missing describes it meanwhile.
func (s *Story) awaitGone(ctx context.Context, object client.Object, missing func() string) {
	s.await(ctx, func(ctx context.Context) string {
		err := s.client.Get(ctx, client.ObjectKeyFromObject(object), object)
		if apierrors.IsNotFound(err) {
			return ""
		}

		must.Do(err)

		return missing()
	})
}

// awaitExit waits until a shard has exited.
func (s *Story) awaitExit(ctx context.Context, shard *shard) {
	err := must.Attempt(func() {
		s.await(ctx, func(context.Context) string { return unless(!shard.Running(), "the process is still running") })
	})
	if err != nil {
		must.Do(fault(shard.Process, "does not exit: %w", err))
	}
}

// awaitRendered waits until the shards have no more work on Websites.
func (s *Story) awaitRendered(ctx context.Context) {
	s.await(ctx, func(ctx context.Context) string {
		unrendered, err := website.Unrendered(ctx, s.client)
		must.Do(err)

		return unless(len(unrendered) == 0, "%d Websites are not rendered", len(unrendered))
	})
}

// awaitIdle waits until the running shards have been idle for idleFor.
func (s *Story) awaitIdle(ctx context.Context) {
	s.await(ctx, func(context.Context) string {
		all := s.reconciles()
		for _, shard := range s.running() {
			spans, open := system.Of(all, shard.PID())

			recent := slices.ContainsFunc(spans, func(span history.Span) bool { return span.End > record.Now()-idleFor })
			if open > 0 || recent {
				return fmt.Sprintf("%s is in %d reconciles, or was recently", shard.Name, open)
			}
		}

		return ""
	})
}
