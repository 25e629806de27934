package scenario

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/clusterring/clusterring/tools/demo/internal/observe"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/history"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// spansOf returns the reconciles of a process, and the number of those that have not ended.
func spansOf(all []history.Span, pid int) (spans []history.Span, open int) {
	for _, span := range all {
		if span.PID != pid {
			continue
		}

		spans = append(spans, span)
		if span.End == 0 {
			open++
		}
	}

	return spans, open
}

// verify checks everything recorded so far: no two shards worked at the same time on one object, or on an object and an object that it
// controls; no shard began to work without its Lease; no object left a shard that held its Lease without a drain, and no controlled
// object before its owner. A frozen process does no work.
func (s *Story) verify(context.Context) error {
	all, ended, cut := s.reconciles(), map[int]time.Duration{}, map[string]int{}

	for _, shard := range s.shards {
		if shard.Running() {
			continue
		}

		_, open := spansOf(all, shard.PID())
		if shard.lost == stopped && open > 0 {
			return fault(shard.Process, "stopped gracefully, but during %d reconciles", open)
		}

		ended[shard.PID()] = record.At(shard.EndedAt())
		cut[shard.lost] += open
	}

	run := check.Run{Versions: s.versions(), Spans: history.Close(all, ended, record.Now()), Frozen: s.pauses}
	if err := wrong("a guarantee was violated", check.Safety(run)); err != nil {
		return err
	}
	s.ok("%d reconciles recorded (%s): no two shards worked on one object at the same time", len(all), cuts(cut))

	return nil
}

// cuts counts the interrupted reconciles by what happened to their shards.
func cuts(by map[string]int) string {
	var texts []string

	for _, c := range []struct{ how, what string }{{killed, "the kill"}, {frozen, "the freeze"}} {
		if n := by[c.how]; n > 0 {
			texts = append(texts, fmt.Sprintf("%d interrupted by %s", n, c.what))
		}
	}

	if len(texts) == 0 {
		return "none interrupted"
	}

	return strings.Join(texts, ", ")
}

// verifyMoves checks all moves: no object left a shard that held its Lease without a drain, and no controlled object before its owner.
// Since the step began, no object came to a shard before the objects that it controls.
func (s *Story) verifyMoves(context.Context) error {
	versions := s.versions()

	return errors.Join(
		wrong("objects left their shard without a drain, or in the wrong order", check.Safety(check.Run{Versions: versions})),
		wrong("objects came to a shard in the wrong order", observe.Disordered(s.before, versions[s.old:])))
}

// verifyShips checks everything recorded so far: no Ship was created twice, and none is missing.
func (s *Story) verifyShips(context.Context) error {
	versions := s.versions()
	if excess, missing := check.Excess(versions); excess+missing > 0 {
		return fmt.Errorf("a move made a controller create %d Ships twice, or miss %d Ships", excess, missing)
	}
	s.ok("%d Fleets moved %d times, and their controllers counted correctly: of %d Ships, none was created twice, none is missing",
		fleets, check.Moves(versions), fleets*shipsOfEach)

	return nil
}
