package check

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/clusterring/clusterring/tools/example/history"
)

// Spans reads the history that one or several processes have appended to one file. A last line that is cut short, for its
// writer was killed, is ignored. Spans without an end get the time at which their process ended, by ended, or else now.
func Spans(in io.Reader, ended map[int]time.Duration, now time.Duration) ([]Span, error) {
	type call struct {
		process  int
		sequence uint64
	}
	open, spans := map[call]Span{}, []Span(nil)
	buffered := bufio.NewReader(in)
	for number := 1; ; number++ {
		text, err := buffered.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the history of reconciles: %w", err)
		}
		var e history.Entry
		if err := json.Unmarshal(text, &e); err != nil {
			return nil, fmt.Errorf("read the history of reconciles, line %d: %w", number, err)
		}
		id := call{e.Process, e.Sequence}
		span, known := open[id]
		switch {
		case e.Event == history.Start:
			open[id] = Span{
				Kind: e.Kind, Name: e.Name, UID: string(e.UID), Worker: Worker{Shard: e.Shard, PID: e.Process},
				Start: time.Duration(e.Monotonic),
			}
		case e.Event == history.End && known:
			span.End = time.Duration(e.Monotonic)
			spans = append(spans, span)
			delete(open, id)
		default:
			return nil, fmt.Errorf("read the history of reconciles, line %d: %q without a start: %s", number, e.Event, text)
		}
	}
	for _, span := range slices.Collect(maps.Values(open)) {
		span.End = now
		if end, gone := ended[span.PID]; gone {
			span.End = end
		}
		spans = append(spans, span)
	}
	return spans, nil
}
