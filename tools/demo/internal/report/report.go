// Package report shows a person the progress of a series of steps: what each waits for, what it has found, how long it
// took, and at the end a table of all steps.
package report

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// quiet is the interval between lines of progress.
const quiet = 5 * time.Second

// Console writes lines for people. It is safe for concurrent use.
type Console struct {
	out io.Writer

	mu    sync.Mutex
	shown time.Time
}

// NewConsole returns a Console that writes to out.
func NewConsole(out io.Writer) *Console { return &Console{out: out} }

// OK reports a check that passed.
func (c *Console) OK(format string, args ...any) { c.Text("  ✓ "+format, args...) }

// Note writes what is being done.
func (c *Console) Note(format string, args ...any) { c.Text("  "+format, args...) }

// Text writes a line without indentation.
func (c *Console) Text(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.shown = time.Now()
	fmt.Fprintf(c.out, format+"\n", args...)
}

// Progress writes what is being waited for, if nothing was written for a while.
func (c *Console) Progress(format string, args ...any) {
	c.mu.Lock()
	waited := time.Since(c.shown)
	c.mu.Unlock()

	if waited >= quiet {
		c.Text("  … "+format, args...)
	}
}

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
}

// Seconds formats a duration for people: in seconds, or in milliseconds below a tenth of a second.
func Seconds(d time.Duration) string {
	if d < 100*time.Millisecond {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}

	return fmt.Sprintf("%.1f s", d.Seconds())
}

// trailing are the spaces at the ends of lines.
var trailing = regexp.MustCompile(`(?m) +$`)

// Table writes the table of the steps, and their total time.
func (c *Console) Table(rows []Row) {
	var (
		out   strings.Builder
		total time.Duration
	)

	result := "ok"
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "STEP\tCHECKED\tTIME\tRESULT")

	for _, r := range rows {
		texts, of := slices.Clone(r.Checked), "ok"

		if r.Err != nil {
			reason, _, _ := strings.Cut(r.Err.Error(), "\n")
			texts, of, result = append(texts, "failed: "+reason), "FAILED", "FAILED"
		}

		total += r.Took

		for i, text := range texts {
			if i == 0 {
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", r.Step, text, Seconds(r.Took), of)
			} else {
				fmt.Fprintf(table, "\t%s\t\t\n", text)
			}
		}
	}

	fmt.Fprintf(table, "all\t\t%s\t%s\n", Seconds(total), result)

	_ = table.Flush() // a builder takes everything
	c.Text("%s", trailing.ReplaceAllString(strings.TrimSuffix(out.String(), "\n"), ""))
}
