// Package report collects the figures of the scenarios and prints them as one table.
package report

import (
	"fmt"
	"io"
	"sync"
	"text/tabwriter"
)

// Table is a list of figures in insertion order. It is safe for concurrent use. The zero value is empty.
type Table struct {
	mu   sync.Mutex
	rows []row
}

type row struct {
	Figure

	scenario string
}

// Add adds a figure of a scenario.
func (t *Table) Add(scenario string, f Figure) {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.rows = append(t.rows, row{f, scenario})
}

// Figure is a measured value.
type Figure struct {
	// Name describes the value.
	Name string
	// Value is printed with the format %v.
	Value any
	// Limit is the limit for the value, for example "at most 2s"; empty for none.
	Limit string
	// Kept is true if the value keeps the limit. It is ignored without a limit.
	Kept bool
}

// Print writes the table. Lines whose limit was not kept begin with "!".
func (t *Table) Print(out io.Writer) error {
	t.mu.Lock()
	defer t.mu.Unlock()

	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, " \tSCENARIO\tFIGURE\tVALUE\tLIMIT")

	for _, r := range t.rows {
		mark := " "
		if r.Limit != "" && !r.Kept {
			mark = "!"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%v\t%s\n", mark, r.scenario, r.Name, r.Value, r.Limit)
	}

	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the table of figures: %w", err)
	}

	return nil
}
