package simulation

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clusterring/clusterring/services/lab/simulation/apiserver"
)

// run runs a history in a bubble of its own. It fails t only in case of a deadlock of the bubble.
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

		result = Result{Violations: w.violations, Trace: w.lines}
	})

	return result
}

// live runs the history, and then the time in which everything must recover.
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

	if rests := w.final(); rests {
		w.rest(before, w.server.Counts(), w.steward.looked()-looks)
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	w.over = true // the history has ended
}
