package scenario

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/clusterring/clusterring/tools/example/history"
	"github.com/clusterring/clusterring/tools/lab/record"
)

// pause is a time in which a process was frozen.
type pause struct {
	pid         int
	from, until time.Time
}

// work reads what all shards, those that are gone included, have recorded of their reconciles.
func (s *Story) work() (*history.Reader, error) {
	var files []string
	for _, shard := range s.shards {
		if file := s.system.HistoryFile(shard.Name); !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	return record.Histories(files...)
}

// spansOf returns the reconciles of a process, and how many of them have no end.
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

// noOverlap checks what all shards have recorded: no two of them were at work on one object, or on an object and what it
// controls, at the same time. While a process is frozen it does nothing.
func (s *Story) noOverlap() error {
	reader, err := s.work()
	if err != nil {
		return err
	}
	ended, how := map[int]time.Duration{}, map[int]string{}
	for _, shard := range s.shards {
		if !shard.Running() {
			ended[shard.PID()], how[shard.PID()] = reader.Instant(shard.EndedAt()), s.lost[shard]
		}
	}
	cut := map[string]int{}
	for _, span := range reader.Spans() {
		if _, gone := ended[span.PID]; gone && span.End == 0 {
			cut[how[span.PID]]++
			if how[span.PID] == stopped {
				return fmt.Errorf("%s stopped in order, but in the middle of %s %s/%s", span.Shard, span.Kind, span.Namespace, span.Name)
			}
		}
	}
	spans := history.Close(reader.Spans(), ended, reader.Instant(time.Now()))
	for _, p := range s.pauses {
		spans = history.Without(spans, history.Pause{PID: p.pid, From: reader.Instant(p.from), Until: reader.Instant(p.until)})
	}
	var found []string
	for _, overlap := range history.Overlaps(spans, family) {
		at := reader.Time(overlap.Second.Start)
		found = append(found, fmt.Sprintf("at %s: %s", at.Format("15:04:05.000000"), overlap))
	}
	if err := wrong("two shards worked on one object at the same time", found); err != nil {
		return err
	}
	s.ok("%d reconciles recorded (%s): never two shards at one object", len(reader.Spans()), cuts(cut))
	return nil
}

// cuts says how many reconciles were cut short, by what had happened to their shards.
func cuts(by map[string]int) string {
	var texts []string
	for _, c := range []struct{ how, what string }{{killed, "the kill"}, {frozen, "the freeze"}} {
		if n, some := by[c.how]; some {
			texts = append(texts, fmt.Sprintf("%d cut by %s", n, c.what))
		}
	}
	if len(texts) == 0 {
		return "none cut short"
	}
	return strings.Join(texts, ", ")
}

// family names the Website that a reconcile counts for: a Website and its ConfigMap have one name, and who works on one of
// them must be the only one to work on either.
func family(span history.Span) string { return span.Namespace + "/" + span.Name }
