// Package page keeps a Markdown page true that shows commands with what they print: it runs the commands, in the order of the
// page, in one shell, and writes down what they print or compares it with the page.
//
// A command is a line that begins with "$ " in a fenced block of the language console. It goes on with the next line while its
// line ends with a backslash. What follows, up to the next command or the end of the block, is its output: standard output
// and error, as on a terminal. What differs from run to run is written in one way; see [Stable].
package page

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	fence  = "```"
	opens  = fence + "console"
	prompt = "$ "
	// again is how long to wait before a command is run again that has not printed what the page says.
	again = 200 * time.Millisecond
)

// Command is a command of a page.
type Command struct {
	// Line is the number of its line, from 1.
	Line int
	// Text is what a shell gets: one line, or several that end with a backslash, but the last. Without a line feed at its end.
	Text string
	// Output is what it prints, by the page. Empty: nothing. Otherwise it ends with a line feed.
	Output string
}

// Page is a Markdown page. Parse makes it. It is not for concurrent use.
type Page struct {
	parts []part
}

// part is either text or a command.
type part struct {
	text    string
	command *Command
}

// Parse reads a page. It is an error if a block is not closed, or does not begin with a command.
func Parse(text string) (*Page, error) {
	p := &Page{}

	var inBlock bool

	var current *Command // of the block; its output is being read

	var unfinished bool // its text is

	number := 0
	for line := range strings.Lines(text) {
		number++

		bare := strings.TrimRight(line, "\r\n")
		switch {
		case !inBlock:
			inBlock = bare == opens

			p.parts = append(p.parts, part{text: line})
		case unfinished:
			current.Text += "\n" + bare
			unfinished = strings.HasSuffix(bare, `\`)
		case bare == fence:
			inBlock, current = false, nil

			p.parts = append(p.parts, part{text: line})
		case strings.HasPrefix(bare, prompt):
			current = &Command{Line: number, Text: strings.TrimPrefix(bare, prompt)}
			unfinished = strings.HasSuffix(bare, `\`)

			p.parts = append(p.parts, part{command: current})
		case current == nil:
			return nil, fmt.Errorf("line %d: a console block begins with a command, that is with %q", number, prompt)
		default:
			current.Output += bare + "\n"
		}
	}

	if inBlock {
		return nil, errors.New("the last console block is not closed")
	}

	return p, nil
}

// Commands returns the commands in their order. To change them changes the page.
func (p *Page) Commands() []*Command {
	var commands []*Command

	for _, part := range p.parts {
		if part.command != nil {
			commands = append(commands, part.command)
		}
	}

	return commands
}

// String returns the page as Markdown.
func (p *Page) String() string {
	var b strings.Builder
	for _, part := range p.parts {
		b.WriteString(part.text)

		if c := part.command; c != nil {
			b.WriteString(prompt + c.Text + "\n" + c.Output)
		}
	}

	return b.String()
}

// Update runs every command once and writes down what it prints. An output that says the same as before stays as it was.
// Update returns the commands whose output is another one now. After an error the page is not to be used.
func (p *Page) Update(ctx context.Context, sh *Shell) ([]*Command, error) {
	var changed []*Command

	for _, c := range p.Commands() {
		output, err := sh.Run(ctx, c.Text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", c.Line, err)
		}

		if same(output, c.Output) {
			continue
		}

		output = Stable(output)
		if err := writable(output); err != nil {
			return nil, fmt.Errorf("line %d: %w", c.Line, err)
		}

		c.Output = output
		changed = append(changed, c)
	}

	return changed, nil
}

// writable returns an error if a page that has the output would be read in another way.
func writable(output string) error {
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, prompt) || strings.TrimRight(line, "\n") == fence {
			return fmt.Errorf("the output has a line that the page cannot show: %q", line)
		}
	}

	return nil
}

// Check runs every command and returns an error that shows each one that does not print what the page says. Such a command is run
// again until patience is over, which is for all of them together: what it asks about may take a moment on a busy machine.
func (p *Page) Check(ctx context.Context, sh *Shell, patience time.Duration) error {
	over, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	var differ []error

	for _, c := range p.Commands() {
		output, err := c.check(ctx, over, sh)
		if err != nil {
			return errors.Join(append(differ, fmt.Errorf("line %d: %w", c.Line, err))...)
		}

		if !same(output, c.Output) {
			differ = append(differ, fmt.Errorf("line %d: %s%s\nprints:\n%sand not what the page says:\n%s", c.Line, prompt, c.Text, Stable(output), c.Output))
		}
	}

	return errors.Join(differ...)
}

// check runs a command until it prints what it should, or patience is over, and returns what it has printed the last time.
func (c *Command) check(ctx, patience context.Context, sh *Shell) (string, error) {
	ticker := time.NewTicker(again)
	defer ticker.Stop()

	for {
		output, err := sh.Run(ctx, c.Text)
		if err != nil || same(output, c.Output) {
			return output, err
		}

		select {
		case <-ticker.C:
		case <-patience.Done():
		}

		if patience.Err() != nil {
			return output, nil
		}
	}
}
