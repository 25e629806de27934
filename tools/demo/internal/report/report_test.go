package report

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTable also shows that a failure does not change the row.
func TestTable(t *testing.T) {
	checked := append(make([]string, 0, 2), "its Lease was dead after 10.2 s")
	rows := []Row{
		{Step: "1 three shards join", Checked: []string{"Ready 3/3", "every Lease is ready – all three"},
			Took: 1449 * time.Millisecond},
		{Step: "2 a shard is killed", Checked: checked, Took: time.Minute,
			Err: errors.Join(errors.New("3 objects moved"), errors.New("details"))},
	}

	const failed = "" +
		"STEP                 CHECKED                           TIME    RESULT\n" +
		"1 three shards join  Ready 3/3                         1.4 s   ok\n" +
		"                     every Lease is ready – all three\n" +
		"2 a shard is killed  its Lease was dead after 10.2 s   60.0 s  FAILED\n" +
		"                     failed: 3 objects moved\n" +
		"all                                                    61.4 s  FAILED\n"

	var out strings.Builder
	NewConsole(&out).Table(rows)
	require.Equal(t, failed, out.String())
	require.Empty(t, checked[:2][1], "the row is unchanged")

	out.Reset()
	NewConsole(&out).Table(rows[:1])
	require.Contains(t, out.String(), "all                                                    1.4 s  ok\n")
}
