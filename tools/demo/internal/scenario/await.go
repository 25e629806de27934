package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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

// until repeats a part until it does not fail. Why it fails is shown meanwhile, and is part of the error after a
// timeout.
func (s *Story) until(ctx context.Context, part func(context.Context)) {
	begin, within := time.Now(), patience+time.Duration(s.created)*patiencePerObject

	err := must.Attempt(func() {
		must.Until(ctx, within, func(ctx context.Context) {
			missing := must.Attempt(func() { part(ctx) })
			if missing != nil {
				s.console.Progress("waiting: %v (%s)", missing, seconds(begin))
			}

			must.Do(missing)
		})
	})
	if err != nil {
		s.versions() // an incomplete record is the reason
		must.Do(err)
	}
}

// awaitReady waits until the ring is Ready, all running shards are available, all conditions are true, and the
// rebalancer has seen every object in place for exactly these shards.
func (s *Story) awaitReady(ctx context.Context) {
	s.until(ctx, func(ctx context.Context) {
		ring, available := s.ring.Stored(ctx), len(s.available())
		if limit := ring.Spec.ActiveShards; limit != nil {
			available = min(available, int(*limit))
		}

		if problems := system.StatusProblems(ring, available); len(problems) > 0 {
			must.Do(errors.New(problems[0]))
		}

		answer := must.Get(s.query.GetRing(ctx, &diagnosticsv1alpha1.GetRingRequest{Name: localsystem.Ring}))
		must.Hold(ring.Status.Assignment.Fingerprint == answer.GetRing().GetFingerprint(),
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
	s.until(ctx, func(context.Context) {
		versions := slices.DeleteFunc(s.ring.Newest(), func(v check.Version) bool { return !counts(v) })
		missing := n

		for i := range versions {
			versions[i].Complete = true // users may be editing
			if kind := versions[i].Kind; !versions[i].Deleted && (kind == check.Website || kind == check.Fleet) {
				missing--
			}
		}

		must.Hold(missing <= 0, "%d objects were not yet seen", missing)

		problems := check.Final(check.State{Versions: versions, Available: s.available()})
		if len(problems) > 0 {
			must.Do(fmt.Errorf("%d objects are not in place: %s", len(problems), problems[0].Text))
		}
	})
}

// awaitState waits until the Lease of the shard has the state.
func (s *Story) awaitState(ctx context.Context, shard, state string) {
	s.until(ctx, func(context.Context) {
		versions := s.lease(shard)
		must.Hold(len(versions) > 0, "%s has no Lease", shard)

		is := versions[len(versions)-1].State
		must.Hold(is == state, "the Lease of %s is %s, not %s", shard, is, state)
	})
}

// awaitGone waits until an object does not exist. missing describes it meanwhile.
func (s *Story) awaitGone(ctx context.Context, object client.Object, missing func() string) {
	s.until(ctx, func(ctx context.Context) {
		err := s.client.Get(ctx, client.ObjectKeyFromObject(object), object)
		must.Do(client.IgnoreNotFound(err))
		must.Hold(err != nil, "%s", missing())
	})
}

// awaitExit waits until a shard has exited.
func (s *Story) awaitExit(ctx context.Context, shard *shard) {
	err := must.Attempt(func() {
		s.until(ctx, func(context.Context) { must.Hold(!shard.Running(), "the process is still running") })
	})
	if err != nil {
		must.Do(fault(shard.Process, "does not exit: %w", err))
	}
}

// awaitRendered waits until the shards have no more work on Websites.
func (s *Story) awaitRendered(ctx context.Context) {
	s.until(ctx, func(ctx context.Context) {
		unrendered := must.Get(website.Unrendered(ctx, s.client))
		must.Hold(len(unrendered) == 0, "%d Websites are not rendered", len(unrendered))
	})
}

// awaitIdle waits until the running shards have been idle for idleFor.
func (s *Story) awaitIdle(ctx context.Context) {
	s.until(ctx, func(context.Context) {
		all := s.reconciles()
		for _, shard := range s.running() {
			spans, open := system.Of(all, shard.PID())

			recent := slices.ContainsFunc(spans, func(span history.Span) bool { return span.End > record.Now()-idleFor })
			must.Hold(open == 0 && !recent, "%s is in %d reconciles, or was recently", shard.Name, open)
		}
	})
}
