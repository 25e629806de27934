// Package report shows a person how a series of steps goes: what each waits for, what it has found, how long it took, and
// in the end a table of all.
package report

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

const (
	// quiet is how often a progress line is repeated where it cannot be rewritten.
	quiet = 5 * time.Second
	// fallbackWidth is assumed of a terminal that does not say how wide it is.
	fallbackWidth = 80

	green = "\x1b[32m"
	red   = "\x1b[31m"
	bold  = "\x1b[1m"
	dim   = "\x1b[2m"
	plain = "\x1b[0m"
	erase = "\r\x1b[K"
)

// Console writes lines for people. On a terminal it uses colours (unless NO_COLOR is set) and keeps one line of progress
// at the bottom; elsewhere it writes plain lines. It is safe for concurrent use.
type Console struct {
	out      io.Writer
	terminal bool
	colours  bool
	width    func() int
	now      func() time.Time

	mu       sync.Mutex
	progress string
	shown    time.Time
}

// NewConsole returns a Console that writes to out.
func NewConsole(out io.Writer) *Console {
	c := &Console{out: out, now: time.Now, width: func() int { return fallbackWidth }}

	file, isFile := out.(*os.File)
	if isFile && term.IsTerminal(int(file.Fd())) && os.Getenv("TERM") != "dumb" {
		c.terminal = true
		c.colours = os.Getenv("NO_COLOR") == ""
		c.width = func() int {
			width, _, err := term.GetSize(int(file.Fd()))
			if err != nil || width < 1 {
				return fallbackWidth
			}

			return width
		}
	}

	return c
}

// Heading begins a step.
func (c *Console) Heading(format string, args ...any) {
	c.line("\n" + c.colour(bold, fmt.Sprintf(format, args...)))
}

// OK reports something that was checked and held.
func (c *Console) OK(format string, args ...any) {
	c.line("  " + c.colour(green, "✓") + " " + fmt.Sprintf(format, args...))
}

// Failed reports something that was checked and did not hold.
func (c *Console) Failed(format string, args ...any) {
	c.line("  " + c.colour(red, "✗") + " " + fmt.Sprintf(format, args...))
}

// Note says what is being done.
func (c *Console) Note(format string, args ...any) {
	c.line("  " + fmt.Sprintf(format, args...))
}

// Text writes lines as they are.
func (c *Console) Text(text string) {
	c.line(strings.TrimSuffix(text, "\n"))
}

// Block writes lines that belong to the step: a picture, a command's output.
func (c *Console) Block(text string) {
	c.line("    " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n    "))
}

// Progress says what is being waited for. On a terminal it replaces the last such line; elsewhere it is written when it has
// stayed the same kind of wait for a while, so that a log does not fill up.
func (c *Console) Progress(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.terminal {
		if text == c.progress {
			return
		}

		c.progress = text
		fmt.Fprint(c.out, erase+c.colour(dim, cut("  … "+text, c.width()-1)))

		return
	}

	now := c.now()
	if c.shown.IsZero() {
		c.shown = now // the first wait of a kind is worth a line only when it lasts
	}

	if now.Sub(c.shown) >= quiet {
		c.shown = now
		fmt.Fprintln(c.out, "  … "+text)
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
	if !c.colours {
		return text
	}

	return code + text + plain
}

// cut shortens text to at most width cells, taking each character for one.
func cut(text string, width int) string {
	characters := []rune(text)
	if len(characters) <= width {
		return text
	}

	return string(characters[:max(0, width-1)]) + "…"
}
