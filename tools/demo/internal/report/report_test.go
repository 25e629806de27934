package report

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()

	file := filepath.Join("testdata", name)
	if *rewrite {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
	}

	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// console returns one that writes into the builder, with a clock that the test sets.
func console(out *strings.Builder) (*Console, *time.Time) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	c := NewConsole(out)
	c.now = func() time.Time { return now }

	return c, &now
}

// TestTable also shows that a failure does not change the row.
func TestTable(t *testing.T) {
	rows := []Row{
		{Step: "the system starts", Checked: []string{"control plane, services"}, Took: 4700 * time.Millisecond},
		{Step: "1 three shards join", Checked: []string{"Ready 3/3", "every Lease is ready – all three"},
			Took: 1449 * time.Millisecond},
	}

	checked := append(make([]string, 0, 2), "its Lease was dead after 10.2 s")
	failed := Row{
		Step: "2 a shard is killed", Checked: checked, Took: time.Minute,
		Err: errors.Join(errors.New("3 objects moved"), errors.New("details")),
	}

	for name, rows := range map[string][]Row{
		"success.txt": rows,
		"failure.txt": append(rows, failed, Row{Step: "3 never begun", Skipped: true}),
	} {
		var out, coloured strings.Builder

		c, _ := console(&out)
		c.Table(rows)
		golden(t, name, out.String())

		c, _ = console(&coloured)
		c.colours = true
		c.Table(rows)
		require.Contains(t, coloured.String(), green+"ok"+plain)
	}
	require.Empty(t, checked[:2][1], "the row is unchanged")
}

func TestSeconds(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 ms", 99 * time.Millisecond: "99 ms", 100 * time.Millisecond: "0.1 s", 12340 * time.Millisecond: "12.3 s",
		2 * time.Minute: "120.0 s",
	} {
		require.Equal(t, want, Seconds(d))
	}
}

func TestPlainConsole(t *testing.T) {
	var out strings.Builder

	c, now := console(&out)
	c.Heading("%d. Join", 1)
	c.Progress("0 of 3")

	*now = now.Add(quiet - 1)
	c.Progress("1 of 3")
	require.NotContains(t, out.String(), "of 3", "a short wait leaves no trace")

	*now = now.Add(1)
	c.Progress("2 of 3")

	*now = now.Add(1)
	c.Progress("2 of 3, still")
	c.OK("%d of 3", 3)
	c.Progress("something else")
	c.Failed("no")
	c.Block("a\nb\n")
	c.Note("note")
	c.Text("text\n")
	require.Equal(t, "\n1. Join\n  … 2 of 3\n  ✓ 3 of 3\n  ✗ no\n    a\n    b\n  note\ntext\n", out.String())
}

func TestConsoleOnATerminal(t *testing.T) {
	var out strings.Builder

	c, _ := console(&out)
	c.terminal = true
	c.Progress("waiting")
	c.Progress("waiting")
	c.Progress("a long sentence about it")
	c.OK("done")
	c.OK("done, too")
	require.Equal(t, erase+noWrap+"  … waiting"+wrap+
		erase+noWrap+"  … a long sentence about it"+wrap+
		erase+"  ✓ done\n  ✓ done, too\n", out.String())
}
