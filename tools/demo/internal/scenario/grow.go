package scenario

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/clusterring/clusterring/tools/demo/internal/observe"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
)

// grow lets two shards join while users edit their Websites.
func (s *Story) grow(ctx context.Context) error {
	before, err := s.everything()
	if err != nil {
		return err
	}

	mark := s.objects.Mark()
	load := s.edit(ctx)
	begin := time.Now()

	joined, err := s.start(ctx, 2)
	if err == nil {
		err = s.awaitReady(ctx)
	}

	if err == nil {
		err = s.awaitInPlace(ctx)
	}

	took := seconds(begin)

	if err := errors.Join(err, s.end(load)); err != nil {
		return err
	}

	after, err := s.everything()
	if err != nil {
		return err
	}
	s.console.Note("%s joined; meanwhile, users made %d edits: none failed, the slowest took %s", strings.Join(joined, " and "),
		load.edits, report.Seconds(load.slowest))

	if err := s.moved(before, after, joined); err != nil {
		return err
	}

	if err := s.drained(before, mark); err != nil {
		return err
	}
	s.ok("each was drained and released first, and its ConfigMap moved to the new shard before it; took %s", took)

	if err := s.noExcess(); err != nil {
		return err
	}

	if err := s.noOverlap(); err != nil {
		return err
	}

	return s.spreadOut()
}

// moved checks that the joined shards got their share, and that no other object moved.
func (s *Story) moved(before, after observe.Snapshot, joined []string) error {
	isSite := func(key observe.Key, _ observe.State) bool { return key.Resource == websites }
	sitesBefore, sitesAfter := before.Only(isSite), after.Only(isSite)

	moves := observe.Compare(sitesBefore, sitesAfter, func(_, to string) bool { return slices.Contains(joined, to) })
	if err := wrong("objects moved between shards that existed before", moves.Wrong); err != nil {
		return err
	}

	total := float64(len(sitesBefore))
	ideal := float64(len(joined)) / float64(len(s.available()))
	// 5 % for the ring's bound, and three standard deviations for so few objects.
	tolerance := 0.05*ideal + 3*math.Sqrt(ideal*(1-ideal)/total)

	fraction := float64(moves.Moved) / total
	if math.Abs(fraction-ideal) > tolerance {
		return fmt.Errorf("%d of %d Websites moved (%.1f %%), which is not %.1f %% ± %.1f %%",
			moves.Moved, len(sitesBefore), 100*fraction, 100*ideal, 100*tolerance)
	}
	s.ok("%.1f %% of %d Websites moved (ideal %.1f ± %.1f), all to the new shards",
		100*fraction, len(sitesBefore), 100*ideal, 100*tolerance)

	return nil
}

// drained checks the changes since the mark: no main object left an available shard without a drain, no controlled object left before its
// owner, and no owner came to a shard before its controlled objects. before is the state at the mark.
func (s *Story) drained(before observe.Snapshot, mark int) error {
	changes := s.objects.Since(mark)

	return errors.Join(
		wrong("objects left their shard without a drain", observe.Undrained(changes, s.isAvailable)),
		wrong("controlled objects and their owners moved in the wrong order", observe.Disordered(before, changes, websites, s.isAvailable)))
}
