package check

import (
	"io"
	"time"

	"github.com/clusterring/clusterring/tools/example/history"
)

// Spans reads the history that one or several processes have appended to one file. A last line that is cut short, for its
// writer was killed, is ignored. Spans without an end get the time at which their process ended, by ended, or else now.
func Spans(in io.Reader, ended map[int]time.Duration, now time.Duration) ([]Span, error) {
	var r history.Reader
	if err := r.Read(in); err != nil {
		return nil, err
	}
	return history.Close(r.Spans(), ended, now), nil
}
