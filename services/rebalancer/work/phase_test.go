package work

import (
	"fmt"
	"strings"
	"testing"

	"gotest.tools/v3/golden"
)

// TestNext compares the complete function next with testdata/next.table.
func TestNext(t *testing.T) {
	table := fmt.Sprintf("%-15s", "")

	for p := range phases {
		table += fmt.Sprintf(" %-9s", Phase(p)) //nolint:gosec // small numbers
	}

	table = strings.TrimRight(table, " ") + "\n"

	for e := range events {
		row := fmt.Sprintf("%-15s", Event(e)) //nolint:gosec // small numbers
		for p := range phases {
			row += fmt.Sprintf(" %-9s", next(Phase(p), Event(e))) //nolint:gosec // small numbers
		}

		table += strings.TrimRight(row, " ") + "\n"
	}

	golden.Assert(t, table, "next.table")
}
