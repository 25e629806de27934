package explain

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSpans(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second:                           "0 s",
		1400 * time.Millisecond:                "1 s",
		59 * time.Second:                       "59 s",
		time.Minute:                            "1 min",
		9*time.Minute + 59*time.Second:         "9 min 59 s",
		59*time.Minute + 40*time.Second:        "59 min",
		time.Hour:                              "1 h 0 min",
		47*time.Hour + 59*time.Minute:          "47 h 59 min",
		50*24*time.Hour + time.Second:          "50 days",
		9*time.Minute + 59500*time.Millisecond: "10 min",
	} {
		require.Equal(t, want, span(d))
	}
}
