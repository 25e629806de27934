package scenario

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/clusterring/clusterring/tools/example/history"
	"github.com/clusterring/clusterring/tools/lab/record"
)

// pause is a period in which a process was frozen.
type pause struct {
	pid         int
	from, until time.Time
}

// work reads the reconciles that all shards have recorded, including lost shards.
func (s *Story) work() (*history.Reader, error) {
	var files []string
	for _, shard := range s.shards {
		if file := s.system.HistoryFile(shard.Name); !slices.Contains(files, file) {
			files = append(files, file)
		}
	}

	return record.Histories(files...)
}

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

// noOverlap checks the recorded reconciles: no two shards worked at the same time on one object, or on an object and an object that it
// controls. A frozen process does no work.
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
				return fmt.Errorf("%s stopped gracefully, but during a reconcile of %s %s/%s", span.Shard, span.Kind, span.Namespace, span.Name)
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
	s.ok("%d reconciles recorded (%s): no two shards worked on one object at the same time", len(reader.Spans()), cuts(cut))

	return nil
}

// cuts counts the interrupted reconciles by what happened to their shards.
func cuts(by map[string]int) string {
	var texts []string

	for _, c := range []struct{ how, what string }{{killed, "the kill"}, {frozen, "the freeze"}} {
		if n, some := by[c.how]; some {
			texts = append(texts, fmt.Sprintf("%d interrupted by %s", n, c.what))
		}
	}

	if len(texts) == 0 {
		return "none interrupted"
	}

	return strings.Join(texts, ", ")
}

// family returns the key that a Website and its ConfigMap share: they have the same name, and only one shard may work on either at a time.
func family(span history.Span) string { return span.Namespace + "/" + span.Name }
