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

// line is a line of a history file.
type line struct {
	Event     string    `json:"event"`
	Sequence  uint64    `json:"sequence"`
	Process   int       `json:"process"`
	Shard     string    `json:"shard"`
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Time      time.Time `json:"time"`
	// Monotonic counts nanoseconds since the machine started; zero where the platform has no such clock.
	Monotonic int64 `json:"monotonic"`
}

const (
	start = "start"
	end   = "end"
)

// Reader reads history files of one machine. The zero value is ready to use; it is not safe for concurrent use.
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

// Spans returns what has been read so far, in no particular order.
func (r *Reader) Spans() []Span { return r.spans }

// ReadFile reads a whole history file. A last line that is cut short, for its writer was killed, is ignored.
func (r *Reader) ReadFile(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read the history of reconciles: %w", err)
	}
	return errors.Join(r.Read(file), file.Close())
}

// Read reads a whole history.
func (r *Reader) Read(in io.Reader) error {
	buffered := bufio.NewReader(in)
	for number := 1; ; number++ {
		text, err := buffered.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // what comes after the last newline is a line cut short
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
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return fmt.Errorf("decode %q: %w", text, err)
	}
	if l.Time.IsZero() || l.Name == "" || l.Shard == "" {
		return fmt.Errorf("time, name or shard is missing in %q", text)
	}
	if r.open == nil {
		r.open = map[call]int{}
	}
	id, at := call{l.Process, l.Sequence}, r.instant(l)
	switch l.Event {
	case start:
		r.open[id] = len(r.spans)
		r.spans = append(r.spans, Span{
			Object: l.Kind + " " + l.Namespace + "/" + l.Name,
			Worker: Worker{Shard: l.Shard, PID: l.Process}, Start: at,
		})
	case end:
		i, known := r.open[id]
		if !known {
			return fmt.Errorf("an end without a start: %q", text)
		}
		delete(r.open, id)
		r.spans[i].End = at
	default:
		return fmt.Errorf("unknown event %q", l.Event)
	}
	return nil
}

// instant puts a line on one axis of time for all processes. The monotonic clock is the same for all of them and is never
// set; it is shown as the time of day that the first line gives it.
func (r *Reader) instant(l line) time.Time {
	if l.Monotonic == 0 {
		return l.Time
	}
	if r.epoch.IsZero() {
		r.epoch = l.Time.Add(-time.Duration(l.Monotonic))
	}
	return r.epoch.Add(time.Duration(l.Monotonic))
}
