package history

import (
	"fmt"
	"io"
	"os"
	"time"
)

// Now returns the present time by both clocks.
func Now() Stamp {
	return Stamp{Time: time.Now(), Monotonic: monotonic()}
}

// Open opens a file for records, and creates it if it does not exist. Each write is appended as a whole, even if other processes write to the
// file. The path "-" is standard output, which must contain nothing else from this process: the log of a Pod then contains the history between the
// log messages. Closing it has no effect.
func Open(path string) (io.WriteCloser, error) {
	if path == "-" {
		return output{os.Stdout}, nil
	}

	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // the user's choice
	if err != nil {
		return nil, fmt.Errorf("open the file of records: %w", err)
	}

	return file, nil
}

// output is standard output, which must not be closed.
type output struct{ io.Writer }

// Close implements io.Closer.
func (output) Close() error { return nil }
