package work

import (
	"fmt"
	"strings"
	"testing"

	"gotest.tools/v3/golden"
)

// TestNext compares the complete function next with testdata/next.table.
func TestNext(t *testing.T) {
	value := func(p, e uint8) fmt.Stringer { return next(Phase(p), Event(e)) }
	golden.Assert(t, tabulate(phases[:], events[:], value), "next.table")
}

// TestNews compares what is known after more news with testdata/news.table.
func TestNews(t *testing.T) {
	value := func(n, more uint8) fmt.Stringer { return News(n).and(News(more + 1)) }
	golden.Assert(t, tabulate(newsNames[:], newsNames[1:], value), "news.table")
}

// tabulate returns a table of all values of a function.
func tabulate(columns, rows []string, value func(column, row uint8) fmt.Stringer) string {
	table := fmt.Sprintf("%-15s", "")

	for _, column := range columns {
		table += fmt.Sprintf(" %-9s", column)
	}

	table = strings.TrimRight(table, " ") + "\n"

	for j, row := range rows {
		line := fmt.Sprintf("%-15s", row)
		for i := range columns {
			line += fmt.Sprintf(" %-9s", value(uint8(i), uint8(j))) //nolint:gosec // small numbers
		}

		table += strings.TrimRight(line, " ") + "\n"
	}

	return table
}
