// Package report keeps the figures of the scenarios and prints them as one table.
package report

import (
	"fmt"
	"io"
	"sync"
	"text/tabwriter"
)

// Table is a list of figures in the order in which they were added. It is safe for concurrent use; the zero value is empty.
type Table struct {
	mu   sync.Mutex
	rows []row
}

type row struct {
	Figure

	scenario string
}

// Add adds a figure: of which scenario, what it is, its value, and what is asked of it ("" for nothing).
func (t *Table) Add(scenario string, f Figure) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, row{f, scenario})
}

// Figure is one thing that was measured.
type Figure struct {
	// Name says what was measured.
	Name string
	// Value is printed as fmt.Sprint does.
	Value any
	// Limit says what is asked of the value, such as "at most 2s"; empty if nothing is.
	Limit string
	// Kept is true if the value is as asked. It counts only where there is a limit.
	Kept bool
}

// Print writes the table. A line whose limit was not kept begins with "!".
func (t *Table) Print(out io.Writer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, " \tSCENARIO\tFIGURE\tVALUE\tASKED")
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
