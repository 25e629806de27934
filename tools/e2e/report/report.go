// Package report collects the figures of the scenarios and prints them as one table.
package report

import (
	"fmt"
	"io"
	"slices"
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

// Print writes the table. Lines whose limit was not kept begin with "!", and are repeated at the end, where a reader of
// a long log looks first.
func (t *Table) Print(out io.Writer) error {
	t.mu.Lock()
	defer t.mu.Unlock()

	missed := slices.DeleteFunc(slices.Clone(t.rows), func(r row) bool { return !r.missed() })

	if err := write(out, t.rows); err != nil {
		return err
	}

	if len(missed) == 0 {
		return nil
	}

	if _, err := fmt.Fprintf(out, "%d of %d figures missed their limit:\n", len(missed), len(t.rows)); err != nil {
		return fmt.Errorf("print the table of figures: %w", err)
	}

	return write(out, missed)
}

// missed reports whether the figure has a limit that was not kept.
func (r row) missed() bool { return r.Limit != "" && !r.Kept }

func write(out io.Writer, rows []row) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, " \tSCENARIO\tFIGURE\tVALUE\tLIMIT")

	for _, r := range rows {
		mark := " "
		if r.missed() {
			mark = "!"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%v\t%s\n", mark, r.scenario, r.Name, r.Value, r.Limit)
	}

	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the table of figures: %w", err)
	}

	return nil
}
