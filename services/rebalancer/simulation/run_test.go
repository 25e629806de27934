package simulation

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clusterring/clusterring/services/rebalancer/simulation/apiserver"
)

// run lets a history happen, in a bubble of its own. It fails t in no case but the deadlock of the bubble.
func run(t *testing.T, h History) (result Result) {
	t.Helper()

	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := newCluster(h)
		w.start(ctx)
		w.live(ctx)
		cancel()
		w.group.Wait()
		w.server.Wait()

		result = Result{Violations: w.violations, Trace: w.lines, Requests: w.server.Counts()}
	})

	return result
}

// live goes through the history, and then through the time in which all must come right.
func (w *Cluster) live(ctx context.Context) {
	since := map[apiserver.ID]time.Time{}
	wait := func(until time.Duration) {
		for w.now() < until {
			pause(ctx, w.clock, min(5*time.Second, until-w.now()), nil)
			w.lies(since)
		}
	}

	for _, s := range w.h.Steps {
		wait(s.At)
		w.happen(ctx, s)
	}

	wait(w.h.End)
	w.say("* all disturbances are over")
	wait(w.h.End + bound)

	before, looks := w.server.Counts(), w.steward.looked()
	w.final()
	wait(w.h.End + bound + resting)
	w.final()
	w.rest(before, w.server.Counts(), w.steward.looked()-looks)

	w.mu.Lock()
	defer w.mu.Unlock()

	w.over = true // what follows is no part of the history
}
