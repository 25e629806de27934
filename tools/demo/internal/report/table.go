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
	// Step is the name of the step.
	Step string
	// Checked is what was checked, with figures; one line each.
	Checked []string
	// Took is how long the step took.
	Took time.Duration
	// Err is why the step failed, nil if all checks passed.
	Err error
	// Skipped is true if the step never began.
	Skipped bool
}

// Seconds formats a duration for people: in seconds, or in milliseconds below a tenth of a second.
func Seconds(d time.Duration) string {
	if d < 100*time.Millisecond {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}

	return fmt.Sprintf("%.1f s", d.Seconds())
}

// line is a line of the table.
type line struct{ step, checked, took, result, colour string }

// lines returns one line for each text in Checked and for the error, at least one.
func (r Row) lines() []line {
	texts, first := r.Checked, line{step: r.Step, took: Seconds(r.Took), result: "ok", colour: green}

	switch {
	case r.Skipped:
		first.took, first.result, first.colour = "-", "not run", dim
	case r.Err != nil:
		first.result, first.colour = "FAILED", red
		reason, _, _ := strings.Cut(r.Err.Error(), "\n")
		texts = append(slices.Clip(texts), "failed: "+reason)
	}

	if len(texts) == 0 {
		texts = []string{"-"}
	}

	first.checked = texts[0]

	lines := []line{first}
	for _, text := range texts[1:] {
		lines = append(lines, line{checked: text})
	}

	return lines
}

// Table writes the table of all steps, and their total time.
func (c *Console) Table(rows []Row) {
	lines, total := []line{{step: "step", checked: "what was checked", took: "time", result: "result"}}, Row{}

	for _, r := range rows {
		lines = append(lines, r.lines()...)

		total.Took += r.Took
		if r.Err != nil {
			total.Err = r.Err
		}
	}

	last := total.lines()[0]
	last.step, last.checked = "all", ""
	lines = append(lines, last)

	var step, checked, took int
	for _, l := range lines {
		step, checked, took = max(step, width(l.step)), max(checked, width(l.checked)), max(took, width(l.took))
	}

	bar := func(n int) string { return strings.Repeat("─", n) }
	rule := strings.Join([]string{bar(step), bar(checked), bar(took), bar(len("result"))}, "  ")

	var out strings.Builder

	for i, l := range lines {
		if i == 1 || i == len(lines)-1 {
			out.WriteString(rule + "\n")
		}

		text := fmt.Sprintf("%-*s  %-*s  %*s  ", step, l.step, checked, l.checked, took, l.took)
		if l.result != "" {
			text += c.colour(l.colour, l.result)
		}

		out.WriteString(strings.TrimRight(text, " ") + "\n")
	}
	c.line(out.String())
}

// width is the number of characters, as in fmt.
func width(text string) int { return utf8.RuneCountInString(text) }
