package scenario

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/clusterring/clusterring/tools/demo/internal/observe"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/testkit/check"
)

// grow lets two shards join while users edit their Websites.
func (s *Story) grow(ctx context.Context) error {
	var joined []string

	edited, err := s.underLoad(ctx, false, func(ctx context.Context, _ *users) (err error) {
		if joined, err = s.start(ctx, 2); err != nil {
			return err
		}

		return inOrder(ctx, s.awaitReady, s.awaitInPlace)
	})
	if err != nil {
		return err
	}

	took := seconds(s.began)
	s.console.Note("%s joined; meanwhile, users made %d edits: none failed, the slowest took %s", strings.Join(joined, " and "),
		edited.edits, report.Seconds(edited.slowest))

	if err := s.verifyShare(joined); err != nil {
		return err
	}

	if err := s.verifyMoves(ctx); err != nil {
		return err
	}
	s.ok("each was drained and released first, and its ConfigMap moved to the new shard before it; took %s", took)

	return inOrder(ctx, s.verifyShips, s.verify, s.spreadOut)
}

// verifyShare checks that the joined shards got their share of the Websites, and that no object moved to another shard.
func (s *Story) verifyShare(joined []string) error {
	moves, sites := observe.Moves(s.before, s.objects()), float64(len(s.before.Of(check.Website)))
	moved := 0.0

	for _, move := range moves {
		if move.After.Kind == check.Website {
			moved++
		}
	}

	unwanted := slices.DeleteFunc(moves, func(move observe.Change) bool { return slices.Contains(joined, move.After.Shard) })
	if err := wrong("objects moved between shards that existed before", unwanted); err != nil {
		return err
	}

	ideal := float64(len(joined)) / float64(len(s.running()))
	// 5 % for the ring's bound, and three standard deviations for so few objects.
	tolerance := 0.05*ideal + 3*math.Sqrt(ideal*(1-ideal)/sites)

	figures := fmt.Sprintf("%.1f %% of %.0f Websites moved (ideal %.1f ± %.1f)", 100*moved/sites, sites, 100*ideal, 100*tolerance)
	if math.Abs(moved/sites-ideal) > tolerance {
		return fmt.Errorf("the new shards did not get their share: %s", figures)
	}
	s.ok("%s, all to the new shards", figures)

	return nil
}
