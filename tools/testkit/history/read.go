package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Reader reads what the recorders of one machine have written. The zero value is ready to use. It is not safe for concurrent use.
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

// Instant converts a time of day into a point on the axis of Start and End. The first line read relates the two clocks; before
// that, the time counts from 1970.
func (r *Reader) Instant(t time.Time) time.Duration {
	if r.epoch.IsZero() {
		return time.Duration(t.UnixNano())
	}

	return t.Sub(r.epoch)
}

// Time converts a point on the axis of Start and End into a time of day; it is the inverse of Instant.
func (r *Reader) Time(at time.Duration) time.Time {
	if r.epoch.IsZero() {
		return time.Unix(0, int64(at))
	}

	return r.epoch.Add(at)
}

// ReadFile reads a whole file. It ignores a truncated last line, whose writer was killed or is still writing it.
func (r *Reader) ReadFile(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read the history of reconciles: %w", err)
	}

	return errors.Join(r.Read(file), file.Close())
}

// Read reads a whole history, as ReadFile does.
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
			Worker: Worker{Shard: e.Shard, PID: e.Process}, Start: r.instant(e.Stamp),
		})
	case End:
		i, known := r.open[id]
		if !known {
			return fmt.Errorf("an end without a start: %q", text)
		}
		delete(r.open, id)
		r.spans[i].End, r.spans[i].Error = r.instant(e.Stamp), e.Error
	default:
		return fmt.Errorf("unknown event %q", e.Event)
	}

	return nil
}

// instant puts a stamp on the axis.
func (r *Reader) instant(s Stamp) time.Duration {
	if s.Monotonic == 0 {
		return time.Duration(s.Time.UnixNano())
	}

	if r.epoch.IsZero() {
		r.epoch = s.Time.Add(-time.Duration(s.Monotonic))
	}

	return time.Duration(s.Monotonic)
}
