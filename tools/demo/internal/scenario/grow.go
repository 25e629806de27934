package scenario

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/clusterring/clusterring/tools/demo/internal/history"
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
		err = s.awaitSettled(ctx)
	}
	took := seconds(begin)
	if err := errors.Join(err, load.end()); err != nil {
		return err
	}
	after, err := s.everything()
	if err != nil {
		return err
	}
	s.console.Note("%s joined; users made %d edits meanwhile, none failed, the slowest took %s", strings.Join(joined, " and "),
		load.edits, report.Seconds(load.slowest))
	if err := s.moved(before, after, joined); err != nil {
		return err
	}
	changes := s.objects.Since(mark)
	if err := wrong("moves without a drain", observe.Undrained(changes, s.isAvailable)); err != nil {
		return err
	}
	if err := wrong("children that moved before their owner", observe.EarlyChildren(before, changes, websites)); err != nil {
		return err
	}
	s.ok("each was drained and given up first, its ConfigMap came after it; done in %s", took)
	if err := s.noOverlap(); err != nil {
		return err
	}
	return s.spreadOut()
}

// moved checks that the joined shards got their share, from everybody, and that nothing else moved.
func (s *Story) moved(before, after observe.Snapshot, joined []string) error {
	isSite := func(key observe.Key, _ observe.State) bool { return key.Resource == websites }
	sitesBefore, sitesAfter := before.Only(isSite), after.Only(isSite)
	moves := observe.Compare(sitesBefore, sitesAfter, func(_, to string) bool { return slices.Contains(joined, to) })
	if err := wrong("objects moved between shards that were there before", moves.Wrong); err != nil {
		return err
	}
	total := float64(len(sitesBefore))
	ideal := float64(len(joined)) / float64(len(s.available()))
	// 5 % for the ring's bound, and three standard deviations for so few objects.
	tolerance := 0.05*ideal + 3*math.Sqrt(ideal*(1-ideal)/total)
	fraction := float64(moves.Moved) / total
	if math.Abs(fraction-ideal) > tolerance {
		return fmt.Errorf("%d of %d Websites moved, %.1f %%, which is not the ideal of %.1f %% ± %.1f %%",
			moves.Moved, len(sitesBefore), 100*fraction, 100*ideal, 100*tolerance)
	}
	s.ok("%.1f %% of %d Websites moved (ideal %.1f ± %.1f), all to the new shards",
		100*fraction, len(sitesBefore), 100*ideal, 100*tolerance)
	return nil
}

// noOverlap checks what all shards, those that are gone included, have recorded of their reconciles.
func (s *Story) noOverlap() error {
	reader, ended := history.Reader{}, map[int]time.Time{}
	for _, shard := range s.shards {
		if err := reader.ReadFile(s.system.HistoryFile(shard.Name)); err != nil {
			return err
		}
		if !shard.Running() {
			ended[shard.PID()] = shard.EndedAt()
		}
	}
	spans := history.Close(reader.Spans(), ended, time.Now())
	cut := 0
	for _, span := range reader.Spans() {
		if _, gone := ended[span.Worker.PID]; gone && span.End.IsZero() {
			cut++
			if s.lost[span.Worker.Shard] != "killed" {
				return fmt.Errorf("%s stopped in order, but in the middle of %s", span.Worker.Shard, span.Object)
			}
		}
	}
	var found []string
	for _, overlap := range history.Overlaps(families(spans)) {
		found = append(found, overlap.String())
	}
	if err := wrong("two shards worked on one object at the same time", found); err != nil {
		return err
	}
	s.ok("%d reconciles recorded (%d cut by the kill): never two shards at one object",
		len(spans), cut)
	return nil
}

// families names each span after the Website that it counts for: a Website and its ConfigMap have one name, and who works on
// one of them must be the only one to work on either.
func families(spans []history.Span) []history.Span {
	renamed := slices.Clone(spans)
	for i := range renamed {
		_, name, _ := strings.Cut(renamed[i].Object, " ")
		renamed[i].Object = name
	}
	return renamed
}
