package history

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"
)

// Worker is a process that reconciles.
type Worker struct {
	// Shard is the name of the shard, and PID is the process that runs it: a shard may come back as another process.
	Shard string
	PID   int
}

// Span is one reconcile of one object, from its start to its end.
type Span struct {
	// Kind, Namespace, Name, and UID identify the object.
	Kind, Namespace, Name, UID string
	Worker
	// Start and End come from the machine's monotonic clock, which its processes share: see [Stamp]. A zero End means that
	// no end was recorded.
	Start, End time.Duration
	// Error is the error that the reconcile returned; empty without one.
	Error string
}

// String describes who worked on what, and when.
func (s Span) String() string {
	return fmt.Sprintf("%s (process %d) worked on %s %s/%s from %s to %s", s.Shard, s.PID, s.Kind, s.Namespace, s.Name,
		s.Start, s.End)
}

// Close returns the spans with an end for each. A span without an end gets the time at which its process ended, from
// ended (by process ID). If ended contains no entry, the process is alive, and the span gets now. A process that has
// ended no longer works.
func Close(spans []Span, ended map[int]time.Duration, now time.Duration) []Span {
	closed := slices.Clone(spans)
	for i := range closed {
		if closed[i].End != 0 {
			continue
		}

		closed[i].End = now
		if end, gone := ended[closed[i].PID]; gone {
			closed[i].End = end
		}
	}

	return closed
}

// Pause is a time in which a process was stopped from outside (SIGSTOP) and did nothing.
type Pause struct {
	PID         int
	From, Until time.Duration
}

// Without returns closed spans, with the pause removed from those of its process: a span that extends beyond the pause
// on both sides becomes two.
func Without(spans []Span, p Pause) []Span {
	var worked []Span

	for _, s := range spans {
		if s.PID != p.PID || s.End <= p.From || s.Start >= p.Until {
			worked = append(worked, s)

			continue
		}

		if s.Start < p.From {
			before := s
			before.End = p.From
			worked = append(worked, before)
		}

		if s.End > p.Until {
			after := s
			after.Start = p.Until
			worked = append(worked, after)
		}
	}

	return worked
}

// Overlap is a pair of spans of one unit and two workers that ran at the same time. First began first.
type Overlap struct {
	First, Second Span
}

// String describes who overlapped with whom on what, and for how long.
func (o Overlap) String() string {
	return fmt.Sprintf("%s, %s: both for %s", o.First, o.Second, min(o.First.End, o.Second.End)-o.Second.Start)
}

// Overlaps returns pairs of closed spans of one unit that overlap although their workers differ, in the order in which
// the overlaps began. A unit is what one worker at a time may work on; unit returns the unit of a span. Every span that
// began during another worker's span is in a pair with that worker's span that ends last. A span that begins when
// another ends does not overlap with it.
func Overlaps(spans []Span, unit func(Span) string) []Overlap {
	units := map[string][]Span{}
	for _, s := range spans {
		units[unit(s)] = append(units[unit(s)], s)
	}

	var found []Overlap
	for _, name := range slices.Sorted(maps.Keys(units)) {
		found = append(found, overlaps(units[name])...)
	}
	slices.SortStableFunc(found, func(a, b Overlap) int { return cmp.Compare(a.Second.Start, b.Second.Start) })

	return found
}

// overlaps returns the overlaps of one unit.
func overlaps(spans []Span) []Overlap {
	slices.SortFunc(spans, func(a, b Span) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.End, b.End), compareWorkers(a.Worker, b.Worker))
	})

	var found []Overlap

	latest := map[Worker]Span{} // each worker's span so far that ends last
	for _, span := range spans {
		for _, other := range slices.SortedFunc(maps.Keys(latest), compareWorkers) {
			if other != span.Worker && span.Start < latest[other].End {
				found = append(found, Overlap{First: latest[other], Second: span})
			}
		}

		if span.End > latest[span.Worker].End {
			latest[span.Worker] = span
		}
	}

	return found
}

func compareWorkers(a, b Worker) int {
	return cmp.Or(cmp.Compare(a.Shard, b.Shard), cmp.Compare(a.PID, b.PID))
}

// Reader reads what the recorders of one machine have written. The zero value is ready to use. It is not safe for
// concurrent use.
type Reader struct {
	spans []Span
	open  map[call]int
	epoch time.Time
}

// call identifies a reconcile.
type call struct {
	process  int
	sequence uint64
}

// Spans returns what has been read so far, in the order in which the starts were read.
func (r *Reader) Spans() []Span { return r.spans }

// Time converts a point on the axis of Start and End into a time of day. The first line read relates the two clocks.
func (r *Reader) Time(at time.Duration) time.Time { return r.epoch.Add(at) }

// ReadFiles returns the reconciles that processes of this machine have recorded in files. It ignores a truncated last
// line, whose writer was killed or is still writing it.
func ReadFiles(paths ...string) ([]Span, error) {
	var r Reader

	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read the history of reconciles: %w", err)
		}

		if err := errors.Join(r.Read(file), file.Close()); err != nil {
			return nil, err
		}
	}

	return r.Spans(), nil
}

// Read reads a whole history, as ReadFiles does.
func (r *Reader) Read(in io.Reader) error {
	buffered := bufio.NewReader(in)
	for number := 1; ; number++ {
		text, err := buffered.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // what follows the last newline is a truncated line
		}

		if err != nil {
			return fmt.Errorf("read the history of reconciles: %w", err)
		}

		if err := r.add(bytes.TrimSpace(text)); err != nil {
			return fmt.Errorf("read the history of reconciles, line %d: %w", number, err)
		}
	}
}

func (r *Reader) add(text []byte) error {
	var e Entry
	if err := json.Unmarshal(text, &e); err != nil {
		return fmt.Errorf("decode %q: %w", text, err)
	}

	at := time.Duration(e.Monotonic)
	if r.epoch.IsZero() {
		r.epoch = e.Time.Add(-at)
	}

	id := call{e.Process, e.Sequence}
	switch e.Event {
	case Start:
		if e.Name == "" || e.Shard == "" {
			return fmt.Errorf("name or shard is missing in %q", text)
		}

		if r.open == nil {
			r.open = map[call]int{}
		}

		r.open[id] = len(r.spans)
		r.spans = append(r.spans, Span{
			Kind: e.Kind, Namespace: e.Namespace, Name: e.Name, UID: string(e.UID),
			Worker: Worker{Shard: e.Shard, PID: e.Process}, Start: at,
		})
	case End:
		i, known := r.open[id]
		if !known {
			return fmt.Errorf("an end without a start: %q", text)
		}
		delete(r.open, id)
		r.spans[i].End, r.spans[i].Error = at, e.Error
	default:
		return fmt.Errorf("unknown event %q", e.Event)
	}

	return nil
}
