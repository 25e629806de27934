// Package report shows a person the progress of a series of steps: what each waits for, what it has found, how long it
// took, and at the end a table of all steps.
package report

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/term"
)

const (
	// quiet is the interval between progress lines that cannot be replaced.
	quiet = 5 * time.Second

	green = "\x1b[32m"
	red   = "\x1b[31m"
	bold  = "\x1b[1m"
	dim   = "\x1b[2m"
	plain = "\x1b[0m"
	erase = "\r\x1b[K"
	// noWrap cuts long lines at the end of the line, wrap continues them on the next line.
	noWrap, wrap = "\x1b[?7l", "\x1b[?7h"
)

// Console writes lines for people. On a terminal, it uses colours (unless NO_COLOR is set) and keeps one line of
// progress at the bottom; elsewhere, it writes plain lines. It is safe for concurrent use.
type Console struct {
	out      io.Writer
	terminal bool
	colours  bool
	now      func() time.Time

	mu       sync.Mutex
	progress string
	shown    time.Time
}

// NewConsole returns a Console that writes to out.
func NewConsole(out io.Writer) *Console {
	file, isFile := out.(*os.File)
	terminal := isFile && term.IsTerminal(int(file.Fd())) && os.Getenv("TERM") != "dumb"

	return &Console{out: out, now: time.Now, terminal: terminal, colours: terminal && os.Getenv("NO_COLOR") == ""}
}

// Heading begins a step.
func (c *Console) Heading(format string, args ...any) {
	c.line("\n" + c.colour(bold, fmt.Sprintf(format, args...)))
}

// OK reports a check that passed.
func (c *Console) OK(format string, args ...any) {
	c.line("  " + c.colour(green, "✓") + " " + fmt.Sprintf(format, args...))
}

// Failed reports a check that failed.
func (c *Console) Failed(format string, args ...any) {
	c.line("  " + c.colour(red, "✗") + " " + fmt.Sprintf(format, args...))
}

// Note writes what is being done.
func (c *Console) Note(format string, args ...any) {
	c.line("  " + fmt.Sprintf(format, args...))
}

// Text writes lines as they are.
func (c *Console) Text(text string) {
	c.line(strings.TrimSuffix(text, "\n"))
}

// Block writes indented lines, such as the output of a command.
func (c *Console) Block(text string) {
	c.line("    " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n    "))
}

// Progress writes what is being waited for. On a terminal, it replaces the previous such line. Elsewhere, only waits
// that last are written, and not often, so that a log stays short.
func (c *Console) Progress(format string, args ...any) {
	text := "  … " + fmt.Sprintf(format, args...)

	c.mu.Lock()
	defer c.mu.Unlock()

	now := c.now()

	switch {
	case c.terminal && text != c.progress:
		c.progress = text
		fmt.Fprint(c.out, erase+noWrap+c.colour(dim, text)+wrap)
	case c.terminal:
	case c.shown.IsZero():
		c.shown = now
	case now.Sub(c.shown) >= quiet:
		c.shown = now
		fmt.Fprintln(c.out, text)
	}
}

// line writes whole lines above the line of progress, which ends with them.
func (c *Console) line(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.progress != "" {
		fmt.Fprint(c.out, erase)
	}

	c.progress, c.shown = "", time.Time{}
	fmt.Fprintln(c.out, text)
}

func (c *Console) colour(code, text string) string {
	if !c.colours || code == "" {
		return text
	}

	return code + text + plain
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

// cells returns the lines of the row, each with its cells: one line for each text in Checked and for the error, at
// least one.
func (c *Console) cells(r Row) [][]string {
	texts, took, result := r.Checked, Seconds(r.Took), c.colour(green, "ok")

	switch {
	case r.Skipped:
		took, result = "-", c.colour(dim, "not run")
	case r.Err != nil:
		reason, _, _ := strings.Cut(r.Err.Error(), "\n")
		texts, result = append(slices.Clip(texts), "failed: "+reason), c.colour(red, "FAILED")
	}

	if len(texts) == 0 {
		texts = []string{"-"}
	}

	lines := [][]string{{r.Step, texts[0], took, result}}
	for _, text := range texts[1:] {
		lines = append(lines, []string{"", text, "", ""})
	}

	return lines
}

// trailing are the spaces at the ends of lines.
var trailing = regexp.MustCompile(`(?m) +$`)

// Table writes the table of all steps, and their total time.
func (c *Console) Table(rows []Row) {
	total := Row{Step: "all"}

	for _, r := range rows {
		total.Took += r.Took
		total.Err = errors.Join(total.Err, r.Err)
	}

	lines := [][]string{{"STEP", "CHECKED", "TIME", "RESULT"}}
	for _, r := range rows {
		lines = append(lines, c.cells(r)...)
	}

	last := c.cells(total)[0]
	last[1] = ""
	lines = append(lines, last)

	var out strings.Builder

	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, cells := range lines {
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}

	_ = table.Flush() // a builder takes everything
	c.line(trailing.ReplaceAllString(out.String(), ""))
}
