package report

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Row is one step in the table.
type Row struct {
	// Step names the step.
	Step string
	// Checked holds what was checked, with figures; one line each.
	Checked []string
	// Took is how long the step took.
	Took time.Duration
	// Err is why it failed, nil if all held.
	Err error
	// Skipped says that it was never begun.
	Skipped bool
}

func (r Row) result() string {
	switch {
	case r.Skipped:
		return "not run"
	case r.Err != nil:
		return "FAILED"
	default:
		return "ok"
	}
}

func (r Row) took() string {
	if r.Skipped {
		return "-"
	}

	return Seconds(r.Took)
}

// lines are what was checked, and what went wrong, if something did.
func (r Row) lines() []string {
	lines := r.Checked
	if r.Err != nil {
		first, _, _ := strings.Cut(r.Err.Error(), "\n")
		lines = append(slices.Clip(lines), "failed: "+first)
	}

	if len(lines) == 0 {
		return []string{"-"}
	}

	return lines
}

// Seconds formats a duration for people: seconds, or milliseconds where there is less than a tenth of one.
func Seconds(d time.Duration) string {
	if d < 100*time.Millisecond {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}

	return fmt.Sprintf("%.1f s", d.Seconds())
}

// Table writes the table of all steps, and their total time.
func (c *Console) Table(rows []Row) {
	step, checked, took := len("step"), len("what was checked"), len("time")

	var total time.Duration

	for _, r := range rows {
		step, took = max(step, width(r.Step)), max(took, width(r.took()))
		for _, l := range r.lines() {
			checked = max(checked, width(l))
		}

		total += r.Took
	}

	took = max(took, width(Seconds(total)))

	var out strings.Builder

	line := func(cells ...string) {
		text := pad(cells[0], step) + "  " + pad(cells[1], checked) + "  " + strings.Repeat(" ", took-width(cells[2])) + cells[2] + "  " + cells[3]
		out.WriteString(strings.TrimRight(text, " ") + "\n")
	}
	line("step", "what was checked", "time", "result")

	rule := strings.Repeat("─", step) + "  " + strings.Repeat("─", checked) + "  " + strings.Repeat("─", took) + "  " + strings.Repeat("─", len("result"))
	out.WriteString(rule + "\n")

	for _, r := range rows {
		for i, l := range r.lines() {
			if i == 0 {
				line(r.Step, l, r.took(), c.result(r))
				continue
			}
			line("", l, "", "")
		}
	}
	out.WriteString(rule + "\n")
	line("all", "", Seconds(total), c.result(sum(rows)))
	c.line(out.String())
}

// sum returns a row whose result is that of all.
func sum(rows []Row) Row {
	all := Row{}

	for _, r := range rows {
		if r.Err != nil {
			all.Err = r.Err
		}

		all.Skipped = all.Skipped || r.Skipped
	}

	all.Skipped = all.Skipped && all.Err == nil

	return all
}

func (c *Console) result(r Row) string {
	switch text := r.result(); {
	case r.Skipped:
		return c.colour(dim, text)
	case r.Err != nil:
		return c.colour(red, text)
	default:
		return c.colour(green, text)
	}
}

func pad(text string, to int) string { return text + strings.Repeat(" ", max(0, to-width(text))) }

// width counts characters, taking each for one cell.
func width(text string) int { return utf8.RuneCountInString(text) }
